"""parts_test.py FSDP: the parts of fsdp_ray that need no cluster."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path

FSDP = sys.argv.pop(1)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ray"))

import ray.train  # noqa: E402

from fsdp_ray import FsdpTrainer, control  # noqa: E402
from fsdp_ray.__main__ import parse, take_run_folder  # noqa: E402
from fsdp_ray.command import in_folder, most_nodes_that_fit, node_environment, run_words  # noqa: E402
from fsdp_ray.metrics import MetricsFile  # noqa: E402
from fsdp_ray.node_run import NodeRun, find_cause, first_cause  # noqa: E402
from fsdp_ray.resources import configured_ranks, planned_bytes, shortage, worker_bundle  # noqa: E402
from fsdp_ray.trainer import program_words, spread  # noqa: E402

GIB = float(1 << 30)
CONFIG = """\
model_config_small: {type: gpt2, vocab_size: 257, context_length: 16, hidden_size: 16, num_layers: 1, num_heads: 2}
distributed: {devices: 3, strategy: fsdp}
model: {config: model_config_small}
training: {batch_size: 1, global_batch_size: 12, max_steps: 4}
data: {format: synthetic, sequence_length: 16}
"""


class FolderTest(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        self.config = self.folder / "small.yaml"
        self.config.write_text(CONFIG)
        self.train = ["fsdp", "train", "--config", str(self.config)]


class CommandLines(FolderTest):
    def test_train_keeps_its_run_in_the_folder_and_resumes(self):
        self.assertEqual(in_folder(["fsdp", "train"], "/s/a"), ["fsdp", "train", "--run", "/s/a", "--resume"])
        self.assertEqual(in_folder(["/bin/fsdp", "train", "--resume=auto"], "/s/a"),
                         ["/bin/fsdp", "train", "--resume=auto", "--run", "/s/a"])
        self.assertEqual(in_folder(["my_program", "train"], "/s/a"), ["my_program", "train"])
        with self.assertRaisesRegex(ValueError, "storage_path/name"):
            in_folder(["fsdp", "train", "--run", "runs/b"], "/s/a")

    def test_nodes_meet_at_worker_0(self):
        place = dict(node=1, ranks=4, address="10.0.0.1", port=1234, log_folder="/s/logs")
        self.assertEqual(" ".join(run_words("fsdp", ["p", "-x"], nodes=2, **place)),
                         "fsdp run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 1234 --nproc-per-node 4 "
                         "--log-dir /s/logs -- p -x")
        self.assertNotIn("--master-port", run_words("fsdp", ["p"], nodes=1, **place))

    def test_ranks_get_what_ray_assigned(self):
        # Ray sets OMP_NUM_THREADS to the CPUs of the whole worker.
        inherited = {"PATH": "/bin", "RANK": "7", "MASTER_ADDR": "elsewhere", "OMP_NUM_THREADS": "8"}
        made = node_environment(inherited, own={}, gpus=[2, 3], cpus=8.0, ranks=2)
        self.assertEqual(made, {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "2,3", "OMP_NUM_THREADS": "4"})
        self.assertEqual(node_environment(inherited, own={"OMP_NUM_THREADS": "1"}, gpus=[], cpus=8, ranks=2),
                         {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})

    def test_only_so_many_nodes_as_the_global_batch_fits(self):
        # 12 sequences a step: 3 ranks on each of 4 nodes fit, on 3 nodes (9 ranks) they do not.
        self.assertEqual([most_nodes_that_fit(FSDP, self.train, nodes, 3) for nodes in (4, 3, 2)], [4, 2, 2])
        self.assertEqual(most_nodes_that_fit(FSDP, ["true"], 3, 3), 3)

    def test_the_command_line(self):
        given = parse(["--nodes", "1:4", "--ranks-per-node", "2", "--", "fsdp", "train", "--run", "r/b", "--devices", "2"])
        self.assertEqual((given.nodes, given.ranks_per_node), ((1, 4), 2))
        self.assertEqual(take_run_folder(given.program, "runs", None),
                         (["fsdp", "train", "--devices", "2"], os.path.abspath("r"), "b"))
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            parse(["--nodes", "2"])


class Resources(FolderTest):
    def test_come_from_the_configuration(self):
        self.assertEqual(configured_ranks(FSDP, self.train), 3)
        small = planned_bytes(FSDP, self.train, 1, 3)
        self.config.write_text(CONFIG.replace("hidden_size: 16", "hidden_size: 160"))
        self.assertGreater(planned_bytes(FSDP, self.train, 1, 3), 9 * small)
        bundle = worker_bundle(ranks=3, cpus_per_rank=2, use_gpu=False, rank_bytes=small, given=None)
        self.assertEqual(bundle, {"CPU": 6.0, "memory": 3.0 * (small + (512 << 20))})

    def test_of_gpus_one_for_each_rank(self):
        self.assertEqual(worker_bundle(ranks=8, cpus_per_rank=1, use_gpu=True, rank_bytes=10, given={"CPU": 32, "fast": 1}),
                         {"CPU": 32, "GPU": 8.0, "fast": 1})

    @unittest.skipIf(Path("/dev/nvidia0").exists(), "this machine has GPUs to count")
    def test_the_cores_of_the_driver_are_no_number_of_gpus(self):
        self.config.write_text(CONFIG.replace("devices: 3", "devices: auto"))
        self.assertGreater(configured_ranks(FSDP, self.train), 0)
        with self.assertRaisesRegex(ValueError, "--ranks-per-node 8"):
            configured_ranks(FSDP, self.train, use_gpu=True)

    def test_a_broken_configuration_is_refused_before_anything_starts(self):
        self.config.write_text(CONFIG.replace("max_steps", "max_stps"))
        with self.assertRaisesRegex(ValueError, "max_stps"):
            FsdpTrainer(self.config, fsdp=FSDP, run_config=ray.train.RunConfig(storage_path=str(self.folder), name="a"))

    def test_what_is_short_is_named(self):
        nodes = {"a": ({"CPU": 8, "memory": 4 * GIB}, {"CPU": 8, "memory": 4 * GIB}),
                 "b": ({"CPU": 8, "memory": 4 * GIB}, {"CPU": 2, "memory": 4 * GIB})}
        self.assertEqual(shortage({"CPU": 2}, 2, nodes), "")
        self.assertEqual(shortage({"CPU": 4, "memory": GIB}, 2, nodes),
                         "CPU: 4 wanted on each of 2 nodes; the rest is in use; so many are free on 1 "
                         "(a: 8 free of 8, b: 2 free of 8)")
        self.assertEqual(shortage({"CPU": 2, "memory": 5 * GIB}, 2, nodes),
                         "memory: 5.0 GiB wanted on each of 2 nodes; so many are on 0 "
                         "(a: 4.0 GiB free of 4.0 GiB, b: 4.0 GiB free of 4.0 GiB)")
        self.assertIn("GPU: 1 wanted on each of 1 nodes; so many are on 0", shortage({"GPU": 1}, 1, nodes))
        self.assertIn("nodes: 3 wanted, the cluster has 2", shortage({"CPU": 1}, 3, nodes))

    def test_one_worker_per_node(self):
        config = ray.train.ScalingConfig
        self.assertEqual(spread(config(num_workers=2)), "STRICT_SPREAD")
        self.assertEqual(spread(config(num_workers=(1, 2))), "SPREAD")
        self.assertEqual(spread(config(num_workers=2, placement_strategy="STRICT_PACK")), "STRICT_PACK")


class RunConfigs(FolderTest):
    def refused(self, says, **run):
        with self.assertRaisesRegex(ValueError, says):
            FsdpTrainer(["true"], run_config=ray.train.RunConfig(**run))

    def test_that_do_not_fit_are_refused(self):
        self.refused("a folder that all nodes share", storage_path="s3://bucket/runs")
        inside = self.folder / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
        self.refused("which Ray deletes.*--storage /shared/runs", storage_path=str(inside / "runs"))
        self.refused("checkpoint.keep_last", storage_path=str(self.folder),
                     checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2))

    def test_a_configuration_is_copied_to_where_all_nodes_see_it(self):
        words = program_words(self.config, self.folder / "run")
        self.assertEqual(words[:3], ["fsdp", "train", "--config"])
        self.assertEqual(Path(words[3]).read_text(), CONFIG)
        self.assertTrue(words[3].startswith(str(self.folder / "run")))
        words = program_words({"training": {"max_steps": 2}}, self.folder / "run")
        self.assertEqual(Path(words[3]).read_text(), "training:\n  max_steps: 2\n")


class Metrics(FolderTest):
    def write(self, *records, torn=""):
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write("".join(json.dumps(one) + "\n" for one in records) + torn)

    def step(self, number, loss=1.0):
        return {"kind": "step", "step": number, "loss": loss, "mfu": None, "times": {}}

    def test_what_was_there_before_is_not_told_again(self):
        self.write(self.step(1))
        file = MetricsFile(self.folder)
        self.assertEqual(file.news(), [])
        self.write(self.step(2, "nan"), self.step(3, 0.5))
        self.assertEqual(file.news(), [({"step": 3, "loss": 0.5}, None)])
        self.assertEqual(file.news(), [])

    def test_a_checkpoint_has_the_metrics_of_its_step(self):
        file = MetricsFile(self.folder)
        self.write(self.step(1, 3.0), {"kind": "eval", "step": 1, "loss": 2.5}, self.step(2, 1.0),
                   {"kind": "checkpoint", "step": 1, "path": "/r/step-1"})
        evaluated = {"eval_loss": 2.5, "eval_step": 1}
        self.assertEqual(file.news(), [({"step": 1, "loss": 3.0} | evaluated, "/r/step-1"),
                                       ({"step": 2, "loss": 1.0} | evaluated, None)])
        self.write({"kind": "checkpoint", "step": 2, "path": "/r/step-2"})
        self.assertEqual(file.news(), [({"step": 2, "loss": 1.0} | evaluated, "/r/step-2")])

    def test_a_line_that_is_being_written_waits(self):
        file = MetricsFile(self.folder)
        self.write(torn='{"kind": "step", "st')
        self.assertEqual(file.news(), [])
        self.write(torn='ep": 1, "loss": 1.0}\n')
        self.assertEqual(file.news(), [({"step": 1, "loss": 1.0}, None)])

    def test_a_line_that_a_full_disk_has_cut_off_is_left_out(self):
        file = MetricsFile(self.folder)
        self.write(torn='{"kind": "step", "st')
        self.write({"kind": "step", "step": 1, "loss": 3.0}, {"kind": "step", "step": 2, "loss": 2.0}, torn="7\n")
        self.assertEqual(file.news(), [({"step": 2, "loss": 2.0}, None)])


class NodeRuns(FolderTest):
    def start(self, *words):
        run = NodeRun([FSDP, "run", *words], dict(os.environ), self.folder)
        self.addCleanup(run.kill)
        return run

    def test_the_cause_of_a_failure_is_kept(self):
        with contextlib.redirect_stderr(io.StringIO()):
            run = self.start("--nproc-per-node", "2", "sh", "-c", "[ $RANK = 0 ] && sleep 60; echo no data >&2; exit 3")
            self.assertTrue(run.ended.wait(30))
        self.assertEqual(run.code, 3)
        self.assertRegex(run.cause, "^rank 1 of 2 on .* ended with exit code 3\n.*no data")

    def test_75_is_no_failure(self):
        run = self.start("sh", "-c", "trap 'exit 75' TERM; touch ready; while :; do sleep 0.05; done")
        wait_until(lambda: (self.folder / "ready").exists())
        run.stop(10)
        self.assertEqual((run.code, run.succeeded(), run.cause), (75, True, ""))

    def test_no_rank_outlives_the_thread_that_started_it(self):
        script = textwrap.dedent(f"""\
            import os, sys, time
            sys.path[:0] = {sys.path!r}
            from fsdp_ray.node_run import NodeRun
            NodeRun([{FSDP!r}, "run", "--nproc-per-node", "2", "sh", "-c", "echo $$ >>pids; sleep 77"], dict(os.environ),
                    {str(self.folder)!r})
            time.sleep(100)
            """)
        for number in (signal.SIGKILL, signal.SIGTERM):
            (self.folder / "pids").write_text("")
            parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
            self.addCleanup(parent.kill)
            wait_until(lambda: len((self.folder / "pids").read_text().split()) == 2)
            parent.send_signal(number)
            parent.wait()
            pids = (self.folder / "pids").read_text().split()
            wait_until(lambda: not any(map(lives, pids)), 10)

    def test_the_node_with_the_cause_is_found_whoever_tells_first(self):
        lost, died = {"node": 0, "code": 5, "cause": "rank 0: rank 1 died"}, {"node": 1, "code": 137, "cause": "rank 1: SIGKILL"}
        well = {"node": 2, "code": 75, "cause": ""}
        self.assertEqual(first_cause([well, lost, died]), died)
        self.assertEqual(first_cause([died, lost]), died)
        self.assertEqual(first_cause([lost, well]), lost)
        self.assertIsNone(first_cause([well]))

    def test_without_a_report_the_last_lines_are_the_cause(self):
        report = ["[rank 0] x", "fsdp: waiting", "fsdp: rank 1 of 2 on a ended with exit code 1", "  [rank 1] why", "then rank 0"]
        self.assertEqual(find_cause(report, 1), "rank 1 of 2 on a ended with exit code 1\n  [rank 1] why\nthen rank 0")
        self.assertEqual(find_cause(["x", "fsdp: --nnodes 0: expected 1"], 2), "--nnodes 0: expected 1")
        self.assertIn("ended with exit code 127:\nsh: no such file", find_cause(["sh: no such file"], 127))


class Control(FolderTest):
    def serve(self, answer):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        heard = []

        def run():
            connection, _ = listener.accept()
            with connection:
                heard.append(json.loads(connection.makefile().readline()))
                connection.sendall(answer)

        threading.Thread(target=run, daemon=True).start()
        where = {"host": "127.0.0.1", "port": listener.getsockname()[1], "token": "t", "pid": 1, "run": "r"}
        (self.folder / "control.json").write_text(json.dumps(where))
        return heard

    def test_answers(self):
        heard = self.serve(b'{"ok":true,"step":7}\n')
        self.assertEqual(control.ask(self.folder, "status"), {"step": 7})
        self.assertEqual(heard, [{"token": "t", "do": "status"}])

    def test_refusals(self):
        self.serve(b'{"ok":false,"error":"no such request"}\n')
        with self.assertRaisesRegex(RuntimeError, "save: no such request"):
            control.ask(self.folder, "save")

    def test_a_run_that_is_not_there(self):
        with self.assertRaisesRegex(control.NoRun, "has not begun, or has ended"):
            control.ask(self.folder, "stop")
        self.serve(b"")
        with self.assertRaisesRegex(control.NoRun, "ended before it answered"):
            control.ask(self.folder, "stop")


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(done, seconds=30):
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
