"""Killed ranks, killed nodes and killed drivers on a real Ray cluster. cluster_test.py runs these tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import ray
from cluster import FSDP, ClusterTest, ancestors, last_step, processes_of, ranks_of, records, run_in_thread, wait_until

import fsdp_ray

RAY = Path(sys.executable).parent / "ray"
RANK_KILLS = 10 if os.environ.get("FSDP_LONG") else 1
STEPS = ("--set", "training.max_steps=600")


class Kills(ClusterTest):
    def kill(self, pid, run):
        """Kills a process of a run, and waits for the next step. The seconds that took."""
        starts, begin = len(records(run, "start")), time.time()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(records(run, "start")) > starts and records(run)[-1]["time"] > records(run, "start")[-1]["time"],
                   "a step after the kill")
        return records(run)[-1]["time"] - begin

    def test_of_ranks_and_of_a_node_leave_no_trace_in_the_weights(self):
        run, steps = self.folder / "run", 100 + 50 * RANK_KILLS
        program = ["fsdp", "train", "--config", self.config, "--set", f"training.max_steps={steps}"]
        done = run_in_thread(self.trainer(program, max_failures=RANK_KILLS + 1).fit)
        seconds = []
        for number in range(RANK_KILLS):
            wait_until(lambda least=20 + 30 * number: last_step(run) >= least, "steps")
            seconds.append(self.kill(ranks_of(run)[number % 4], run))
        seconds.sort()
        print(f"kill of a rank to the next step under Ray, {RANK_KILLS} times: p50 {seconds[RANK_KILLS // 2]:.1f} s, "
              f"p95 {seconds[int(0.95 * RANK_KILLS)]:.1f} s", flush=True)

        before = processes_of(run)
        raylets = {node.all_processes["raylet"][0].process.pid: node for node in self.cluster.worker_nodes}
        raylet = next(pid for pid in ancestors(ranks_of(run)[0]) if pid in raylets)
        print(f"kill of the Ray node of rank 0 to the next step: {self.kill(raylet, run):.1f} s", flush=True)
        # The ranks of the dead node ended with it.
        wait_until(lambda: not set(before) & set(processes_of(run)), "the end of the processes from before", 10)
        self.cluster.remove_node(raylets[raylet], allow_graceful=False)
        self.add_node()
        self.assertEqual(done(200).metrics["step"], steps)
        self.same_weights(self.train_alone("--set", f"training.max_steps={steps}"), run)


class Preemption(ClusterTest):
    def test_of_a_node_saves_and_moves_the_ranks(self):
        run = self.folder / "run"
        program = ["fsdp", "train", "--config", self.config, "--set", "training.max_steps=1000000", "--set",
                   "checkpoint.every_steps=0"]
        with mock.patch.dict(os.environ, RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="1", RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S="0.5"):
            done = run_in_thread(self.trainer(program).fit)
            wait_until(lambda: last_step(run) >= 20, "steps")
        node = next(node for node in self.cluster.worker_nodes
                    if node.all_processes["raylet"][0].process.pid in ancestors(ranks_of(run)[0]))
        subprocess.run([RAY, "drain-node", "--address", self.cluster.address, "--node-id", node.node_id, "--reason",
                        "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test", "--deadline-remaining-seconds", "16"],
                       check=True, capture_output=True)
        # The ranks save at once, not when the time is over and Ray ends the workers.
        wait_until(lambda: records(run, "checkpoint"), "a save after the announcement", 12)
        self.assertEqual(len(records(run, "start")), 1)
        wait_until(lambda: records(run, "resume"), "a start on other nodes, though max_failures is 0")
        self.assertGreaterEqual(records(run, "resume")[0]["step"], records(run, "checkpoint")[0]["step"])
        stopped = ray.get(fsdp_ray.connect("run").stop.remote())
        self.assertEqual(done().checkpoint.path, stopped["checkpoint"])
        self.cluster.remove_node(node, allow_graceful=False)
        self.add_node()
        self.same_weights(self.train_alone("--set", f"training.max_steps={stopped['step']}"), run)


class Drivers(ClusterTest):
    def words(self, *options, train=()):
        return [sys.executable, "-m", "fsdp_ray", "--nodes", "2", "--ranks-per-node", "2", "--fsdp", FSDP, *options, "--",
                "fsdp", "train", "--config", str(self.config), "--run", str(self.folder / "run"), *train]

    def start(self, *words):
        output = open(self.folder / "driver.log", "a")
        self.addCleanup(output.close)
        process = subprocess.Popen(self.words("--address", self.cluster.address, train=words), stdout=output, stderr=output)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def log(self):
        return (self.folder / "driver.log").read_text()

    def test_that_end_leave_no_rank_and_go_on_later(self):
        run = self.folder / "run"
        killed = self.start(*STEPS)
        wait_until(lambda: last_step(run) >= 20 or killed.poll() is not None, "steps")
        self.assertIsNone(killed.poll(), self.log())
        self.assertEqual(len(ranks_of(run)), 4)
        begin = time.monotonic()
        killed.kill()
        wait_until(lambda: not processes_of(run), "the end of all ranks", 20)
        print(f"kill of the driver to the end of the last rank: {time.monotonic() - begin:.1f} s")

        interrupted = self.start(*STEPS)
        seen = last_step(run)
        wait_until(lambda: last_step(run) >= seen + 20 or interrupted.poll() is not None, "steps")
        self.assertIsNone(interrupted.poll(), self.log())
        interrupted.send_signal(signal.SIGINT)
        interrupted.wait(30)
        wait_until(lambda: not processes_of(run), "the end of all ranks", 10)
        self.assertIn("SIGTERM", records(run, "end")[-1]["reason"])  # it saved

        self.assertEqual(self.start(*STEPS).wait(100), 0, self.log())
        self.assertEqual(last_step(run), 600)
        self.same_weights(self.train_alone(*STEPS), run)

    def test_work_through_ray_job_submit(self):
        run = self.folder / "run"
        done = subprocess.run([RAY, "job", "submit", "--address", f"http://{self.cluster.head_node.webui_url}", "--",
                               *self.words()], capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("succeeded", done.stdout)
        self.same_weights(self.train_alone(), run)

    def test_give_the_exit_code_and_the_cause(self):
        failed = self.start("--set", "training.max_steps=nine")
        self.assertEqual(failed.wait(60), 2, self.log())
        self.assertIn("training.max_steps", self.log())
