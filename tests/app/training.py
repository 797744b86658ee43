"""What tests of `fsdp train` and `fsdp generate` share: a tiny configuration, runs of it, and the processes of a run.

Arguments of such a test: FSDP WORKER.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from command import FSDP, CommandTest

WORKER = sys.argv[2]
OK, FAILED, USAGE, CHECKPOINT, RENDEZVOUS, PEER_LOST, NUMERIC, STORAGE = range(8)
REQUEUE = 75
CONFIG = """\
model_config_small: {type: gpt2, vocab_size: 257, context_length: 16, hidden_size: 16, num_layers: 1, num_heads: 2}
training_stages:
  stage1: {}
  stage2: {}
distributed: {devices: 2, strategy: fsdp}
model: {config: model_config_small}
training: {batch_size: 2, max_steps: 4}
data: {format: synthetic, sequence_length: 16}
optimizer: {lr: 0.01}
schedule: {name: constant}
checkpoint: {every_steps: 2}
eval: {every_steps: 0}
logging: {every_steps: 1}
"""
LAUNCHERS = re.compile("RANK$|^MASTER_|^WORLD_SIZE$|^LOCAL_|^GROUP_|^ROLE_|^SLURM_|^OMPI_|^PMI|^TORCHELASTIC|^FSDP_")
FOREVER = ("--set", "training.max_steps=1000000")


def environment(**own):
    """This process's variables without those of launchers, and with `own`."""
    clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.search(name)}
    return clean | {"FSDP_WORKER": WORKER} | own


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def wait_until(done, what, seconds=60):
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


def records(run, kind="step"):
    """The records of a kind in a run's metrics.jsonl; the last line may not be whole yet."""
    path = Path(run) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [one for one in map(json.loads, (line for line in lines if line.endswith("\n"))) if one["kind"] == kind]


def losses(run):
    """{step: loss}; a step that was trained again counts as it was last."""
    return {one["step"]: one["loss"] for one in records(run)}


def processes_of(word):
    """{pid: words of its command line}, of processes that have `word` among them."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            if str(word) in words and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found[int(folder.name)] = words
        except OSError:
            pass  # it has ended
    return found


class TrainTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.config = self.folder / "small.yaml"
        self.config.write_text(CONFIG)
        self.run_folder = self.folder / "run"

    def words(self, *arguments):
        run = () if "--run" in arguments else ("--run", self.run_folder)
        return [FSDP, "train", "--config", self.config, *run, *map(str, arguments)]

    def typed(self, words, expect=OK, env=None, **how):
        """Runs a command line in the test's folder. Returns what it wrote to stderr; stdout must be empty."""
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100, cwd=self.folder,
                              env=env or environment(), **how)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def train(self, *arguments, expect=OK, **how):
        return self.typed(self.words(*arguments), expect, **how)

    def says(self, text, *words):
        for word in words:
            self.assertIn(word, text)

    def start(self, *arguments, words=None, env=None):
        """Starts a run that is ended by the test; its stderr is self.output()."""
        with open(self.folder / "output", "w") as file:
            process = subprocess.Popen(list(map(str, words or self.words(*arguments))), stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=file, cwd=self.folder, env=env or environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def output(self):
        return (self.folder / "output").read_text()

    def start_and_wait(self, *arguments, steps=3, **how):
        process = self.start(*arguments, **how)
        wait_until(lambda: len(records(self.run_folder)) >= steps or process.poll() is not None, "steps")
        self.assertIsNone(process.poll(), self.output())
        return process

    def ranks(self):
        """{rank: pid} of the run's ranks. A rank's number is in its environment."""
        found = {}
        for pid, words in processes_of(self.run_folder).items():
            if words[0] == WORKER:
                variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
                found[int(dict(one.split("=", 1) for one in variables if "=" in one)["RANK"])] = pid
        return found

    def no_rank_is_left(self):
        wait_until(lambda: not self.ranks(), "the end of all ranks", 20)


def stop(process, number=signal.SIGTERM):
    process.send_signal(number)
    return process.wait(60)
