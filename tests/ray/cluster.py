"""What the tests on a real Ray cluster share: the cluster, runs, and the processes of a run.

Arguments of such a test: FSDP. The nodes of the cluster are raylets of this machine, with two CPUs each.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

FSDP = sys.argv.pop(1)
PACKAGE = Path(__file__).resolve().parents[2] / "ray"
sys.path.insert(0, str(PACKAGE))

home = tempfile.TemporaryDirectory(prefix="fsdp-ray-")  # Ray keeps tokens and caches there

# For all processes of the cluster. A dead node is noticed after 1.5 s, and workers are looked at five times a second.
os.environ |= {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE), str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
    "HOME": home.name, "PYTHONDONTWRITEBYTECODE": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}  # one process less for each start; a test turns it on

import ray  # noqa: E402
import ray.train  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from fsdp_ray import FsdpTrainer  # noqa: E402

# Reproducible: 1, 2, 4 and 8 ranks give the same bits. A step takes some 10 ms, so that a run can be killed within it.
CONFIG = """\
model_config_small: {type: gpt2, vocab_size: 257, context_length: 64, hidden_size: 64, num_layers: 2, num_heads: 2}
distributed: {devices: 2, strategy: fsdp}
model: {config: model_config_small}
training: {batch_size: 2, global_batch_size: 8, max_steps: 50, reproducible: true}
data: {format: synthetic, sequence_length: 64}
optimizer: {lr: 0.01}
schedule: {name: constant}
checkpoint: {every_steps: 10, keep_last: 3}
eval: {every_steps: 0}
logging: {every_steps: 1}
"""
MEMORY = 80_000_000


class ClusterTest(unittest.TestCase):
    """The cluster is the same for all tests. It has `nodes` nodes: two train, the third is a spare."""

    cluster = None
    nodes = 3

    @classmethod
    def setUpClass(cls):
        begin = time.monotonic()
        if ClusterTest.cluster is None:
            cls.start_cluster()
        for node in list(cls.cluster.worker_nodes)[cls.nodes:]:
            cls.cluster.remove_node(node)
        while len(cls.cluster.worker_nodes) < cls.nodes:
            cls.add_node()
        print(f"a Ray cluster of {cls.nodes} nodes and a head: {time.monotonic() - begin:.1f} s", flush=True)

    @staticmethod
    def start_cluster():
        # The head has no CPUs: it runs the driver's actors, and no ranks.
        ClusterTest.cluster = Cluster(initialize_head=True, head_node_args={
            "num_cpus": 0, "include_dashboard": True, "dashboard_port": free_port(), "object_store_memory": MEMORY})
        atexit.register(ClusterTest.cluster.shutdown)
        ray.init(address=ClusterTest.cluster.address, log_to_driver=bool(os.environ.get("FSDP_TEST_VERBOSE")))
        atexit.register(ray.shutdown)

    @staticmethod
    def add_node():
        # The GPUs are numbers to Ray. Only ranks that ask for them see any.
        return ClusterTest.cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=MEMORY, memory=4 << 30)

    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        self.config = self.folder / "small.yaml"
        self.config.write_text(CONFIG)
        begin = time.monotonic()
        self.addCleanup(lambda: print(f"{self.id().split('.', 1)[1]}: {time.monotonic() - begin:.1f} s", flush=True))

    def trainer(self, program, name="run", nodes=2, max_failures=0, callbacks=(), **how):
        return FsdpTrainer(
            program, poll_seconds=0.2, **({"fsdp": FSDP} | how),
            scaling_config=ray.train.ScalingConfig(num_workers=nodes, elastic_resize_monitor_interval_s=2),
            run_config=ray.train.RunConfig(storage_path=str(self.folder), name=name, callbacks=list(callbacks),
                                           failure_config=ray.train.FailureConfig(max_failures=max_failures)))

    def train_alone(self, *sets):
        """`fsdp train` on 4 ranks of this machine, without Ray. Returns the run's folder."""
        run = self.folder / "alone"
        self.typed("train", "--config", self.config, "--devices", 4, "--run", run, *sets)
        return run

    def typed(self, *words):
        done = subprocess.run([FSDP, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def same_weights(self, one, other):
        """Parameters and moments. There are as many states of generators as there are ranks: they are not compared."""
        done = subprocess.run([FSDP, "ckpt", "diff", "--json", str(one), str(other)], capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)
        self.assertGreater(found["equal"], 0)
        different = found["only_in_first"] + found["only_in_second"]
        different += [one["name"] for one in found["mismatched"] + found["changed"]]
        self.assertEqual([name for name in different if not name.startswith("rng.")], [])


def records(run, kind="step"):
    """The records of a kind in a run's metrics.jsonl; the last line may not be whole yet."""
    path = Path(run) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [one for one in map(json.loads, (line for line in lines if line.endswith("\n"))) if one["kind"] == kind]


def last_step(run):
    return max((one["step"] for one in records(run)), default=0)


def processes_of(run):
    """{pid: words} of processes with a path of the run's folder among their words: `fsdp run` and its ranks."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            if any(word.startswith(str(run)) for word in words) and state(folder)[0] != "Z":
                found[int(folder.name)] = words
        except OSError:
            pass  # it has ended
    return found


def state(folder):
    """The fields of /proc/PID/stat after the name: state, parent, ..."""
    return (folder / "stat").read_text().rsplit(")", 1)[1].split()


def ranks_of(run):
    """{rank: pid}."""
    found = {}
    for pid, words in processes_of(run).items():
        try:
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        except OSError:
            continue
        values = dict(one.split("=", 1) for one in variables if "=" in one)
        if words[0].endswith("fsdp-worker") and "RANK" in values:
            found[int(values["RANK"])] = pid
    return found


def ancestors(pid):
    found = []
    while pid > 1:
        pid = int(state(Path(f"/proc/{pid}"))[1])
        found.append(pid)
    return found


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_in_thread(call):
    """Starts `call`. The result waits for its end, and returns or raises what it does."""
    out = {}

    def run():
        try:
            out["value"] = call()
        except BaseException as error:  # it is raised in the test
            out["error"] = error

    thread = threading.Thread(target=run)
    thread.start()

    def done(seconds=100):
        thread.join(seconds)
        if thread.is_alive():
            raise AssertionError(f"not within {seconds} s")
        if "error" in out:
            raise out["error"]
        return out["value"]

    return done


def wait_until(done, what, seconds=60):
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
