"""Runs on a real Ray cluster that go well. cluster_test.py runs them."""

import os
import signal
from unittest import mock

import ray
import ray.train
from cluster import FSDP, ClusterTest, last_step, processes_of, records, run_in_thread, wait_until

import fsdp_ray


class Elastic(ClusterTest):
    nodes = 1

    def test_has_as_many_ranks_as_there_are_nodes_and_keeps_the_bits(self):
        run = self.folder / "run"
        program = ["fsdp", "train", "--config", self.config, "--set", "training.max_steps=1000000"]
        # After the loss of a node Ray may first wait so long for a gang of the old size.
        with mock.patch.dict(os.environ, RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="5"):
            done = run_in_thread(self.trainer(program, nodes=(1, 2), max_failures=1).fit)
            wait_until(lambda: last_step(run) > 0, "the first steps")
        node = self.add_node()
        wait_until(lambda: len(records(run, "resume")) == 1, "a start with more ranks")
        wait_until(lambda: last_step(run) > records(run, "resume")[0]["step"], "steps of more ranks")
        # The ranks saved before Ray ended them, so no step was trained twice.
        steps = [one["step"] for one in records(run)]
        self.assertEqual(steps, sorted(set(steps)))

        self.cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: len(records(run, "resume")) == 2, "a start with fewer ranks")
        wait_until(lambda: records(run)[-1]["time"] > records(run, "resume")[1]["time"], "steps of fewer ranks")
        self.assertEqual([one["ranks"] for one in records(run, "start")], [2, 4, 2])
        # The ranks save after SIGTERM, and exit code 75 is no failure.
        os.kill(next(pid for pid, words in processes_of(run).items() if words[1] == "run"), signal.SIGTERM)
        result = done()
        self.assertEqual(result.return_value["nodes"], 1)
        step = records(run, "end")[-1]["step"]
        self.assertEqual(result.checkpoint.path, str(run / f"step-{step:08}"))
        self.same_weights(self.train_alone("--set", f"training.max_steps={step}"), run)


class Trainer(ClusterTest):
    def test_the_same_bits_as_alone(self):
        result = self.trainer(self.config).fit()
        run = self.folder / "run"
        self.assertEqual(result.path, str(run))
        self.assertEqual((result.metrics["step"], result.return_value), (50, {"exit_code": 0, "nodes": 2}))
        self.assertEqual(result.metrics["loss"], records(run)[-1]["loss"])
        self.assertEqual(result.checkpoint.path, str(run / "step-00000050"))
        self.assertEqual(records(run, "start")[0]["ranks"], 4)
        self.assertIn("step", (run / "logs" / "rank-0.log").read_text())
        self.same_weights(self.train_alone(), result.checkpoint.path)
        # Ray's own way to open a run finds it too.
        self.assertEqual(ray.train.Result.from_path(str(run)).checkpoint.path, result.checkpoint.path)


class Handle(ClusterTest):
    def test_asks_saves_and_stops_a_running_job(self):
        with self.assertRaisesRegex(ValueError, "gpt"):
            fsdp_ray.connect("gpt")
        run = self.folder / "gpt"
        program = ["fsdp", "train", "--config", self.config, "--set", "training.max_steps=1000000"]
        done = run_in_thread(self.trainer(program, name="gpt").fit)
        wait_until(lambda: last_step(run) > 0, "the first steps")
        with self.assertRaisesRegex(ValueError, "a job named gpt runs on this cluster"):
            self.trainer(program, name="gpt").fit()
        job = fsdp_ray.connect("gpt")
        status = ray.get(job.status.remote())
        self.assertEqual((status["ranks"], status["last_step"], status["restarts"]), (4, 1000000, 0))
        self.assertGreater(ray.get(job.metrics.remote())["metrics"]["step"], 0)
        saved = ray.get(job.save.remote())
        self.assertEqual(saved["checkpoint"], str(run / f"step-{saved['step']:08}"))
        self.typed("ckpt", "verify", saved["checkpoint"])
        stopped = ray.get(job.stop.remote())
        self.assertGreater(stopped["step"], saved["step"])
        result = done()
        self.assertEqual((result.return_value["exit_code"], result.checkpoint.path), (0, stopped["checkpoint"]))


class Tasks(ClusterTest):
    def test_train_on_what_they_were_given(self):
        metrics = ray.get(fsdp_ray.train_task.options(num_cpus=2).remote(str(self.config), str(self.folder / "task"), FSDP))
        self.assertEqual((metrics["step"], metrics["ranks"], metrics["exit_code"]), (50, 2, 0))
        self.same_weights(self.train_alone(), self.folder / "task")

    def test_see_the_gpus_that_ray_assigned_and_no_others(self):
        program = ["sh", "-c", f"echo rank $RANK: $CUDA_VISIBLE_DEVICES >>{self.folder}/seen"]
        task = fsdp_ray.train_task
        self.assertEqual(ray.get(task.options(num_gpus=2).remote(program, str(self.folder), FSDP)), {"exit_code": 0, "ranks": 2})
        self.assertEqual(ray.get(task.options(num_cpus=1).remote(program, str(self.folder), FSDP)), {"exit_code": 0, "ranks": 1})
        self.assertEqual(sorted((self.folder / "seen").read_text().splitlines()), ["rank 0:", "rank 0: 0,1", "rank 1: 0,1"])

    def test_say_which_resource_is_short(self):
        trainer = self.trainer(["true"], nodes=1, ranks_per_node=8)
        self.assertRegex(trainer.missing(), "CPU: 8 wanted on each of 1 nodes; so many are on 0 .*: 2 free of 2")
        self.assertIn("nodes: 5 wanted, the cluster has 4", self.trainer(["true"], nodes=5).missing())
