"""What tests of training runs share: a small configuration, starting `fsdp train`, and reading what a run left."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

FSDP = sys.argv[1]

CONFIG = """
training_stages:
  small:
    distributed: {devices: 1, strategy: fsdp, timeout: 60}
    training: {batch_size: 2, global_batch_size: 16, max_steps: 50}
    model: {config: model_config_small}
    data: {train: corpus.txt, sequence_length: 32}
    optimizer: {lr: 2.0e-3}
    schedule: {name: cosine, warmup_steps: 2}
    checkpoint: {every_steps: 0}
    eval: {every_steps: 0}
model_config_small: {type: gpt2, vocab_size: 257, context_length: 32, hidden_size: 32, num_layers: 2, num_heads: 2}
logging: {tensorboard: false}
"""


WORDS = ("the rank shard unit gather reduce step loss model layer of a in and to each holds sums learns reads writes "
         "before after every other first last small large").split()


def corpus(sentences=3000):
    """A text that is always the same, unlike the documentation, which changes."""
    draw = random.Random(1)
    return "".join(" ".join(draw.choices(WORDS, k=draw.randint(4, 12))).capitalize() + ".\n" for _ in range(sentences))


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "small.yaml").write_text(CONFIG)
        (self.folder / "corpus.txt").write_text(corpus())

    def command(self, run, *sets, ranks=1, resume=False):
        words = [FSDP, "train", "--config", "small.yaml", "--run", str(run), "--devices", str(ranks)]
        words += ["--resume", "auto"] if resume else []
        return words + [word for one in sets for word in ("--set", one)]

    def environment(self):
        kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "NODE_RANK")}
        return kept | {"OMP_NUM_THREADS": "1"}

    def train(self, run, *sets, expect=0, **how):
        """Trains to the end, and returns what was on stderr."""
        done = subprocess.run(self.command(run, *sets, **how), cwd=self.folder, env=self.environment(), text=True,
                              capture_output=True, timeout=300)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def start(self, run, *sets, **how):
        """Starts a run in a process group of its own."""
        log = open(self.folder / "started.log", "ab")
        self.addCleanup(log.close)
        return subprocess.Popen(self.command(run, *sets, **how), cwd=self.folder, env=self.environment(), stdout=log,
                                stderr=log, start_new_session=True)

    def log(self):
        return (self.folder / "started.log").read_text(errors="replace")

    def records(self, run, kind="step"):
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [one for one in map(json.loads, lines) if one.get("kind") == kind]

    def losses(self, run):
        return [one["loss"] for one in self.records(run)]

    def assert_same_weights(self, first, second):
        """Parameters, moments and averages. The states of ranks' generators are as many as there are ranks."""
        done = subprocess.run([FSDP, "ckpt", "diff", "--json", first, second], cwd=self.folder, capture_output=True,
                              text=True)
        found = json.loads(done.stdout)
        self.assertGreater(found["equal"], 0)
        different = found["only_in_first"] + found["only_in_second"]
        different += [one["name"] for one in found["mismatched"] + found["changed"]]
        self.assertEqual([name for name in different if not name.startswith("rng.")], [])

    def assert_close(self, expected, found, tolerance):
        self.assertEqual(len(expected), len(found))
        worst = max(abs(a - b) / abs(a) for a, b in zip(expected, found))
        self.assertLessEqual(worst, tolerance, f"largest relative difference of the losses: {worst:.2e}")
        return worst


def ranks_below(launcher):
    """Processes that the launcher started, by the kernel's list of its children."""
    try:
        return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    except FileNotFoundError:
        return []


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_until(true, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {seconds} s")
        time.sleep(0.01)


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
