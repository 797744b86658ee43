"""Kinds of failure of a rank on one of two Ray nodes: the cause is the first that the user reads. cluster_test.py runs them."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import ray.train
from cluster import FSDP, ClusterTest

from fsdp_ray import RunFailed

# What each rank does, by kind and rank. `train` becomes `fsdp train`.
SCRIPT = """\
kind=$(cat {folder}/kind)
train() {{ exec {fsdp} train --config {config} --run {folder}/$kind "$@"; }}
case $kind-$RANK in
  bad_configuration-1) train --set optimizer.lr=fast;;
  missing_file-0) cd {folder}/here; train --set data.format=text --set data.train=text.txt;;
  missing_file-1) cd {folder}; train --set data.format=text --set data.train=text.txt;;
  out_of_memory-1) (sleep 2; kill -KILL $$) & train --set training.max_steps=1000000;;
  segmentation_fault-1) (sleep 2; kill -SEGV $$) & train --set training.max_steps=1000000;;
  late_report-1) (sleep 2; kill -STOP $PPID; kill -KILL $$; sleep 2; kill -CONT $PPID) & train --set training.max_steps=1000000;;
  late_report-0 | out_of_memory-0 | segmentation_fault-0) train --set training.max_steps=1000000;;
  exception-1) exec {python} -c 'raise RuntimeError("no more data")';;
  exit-1) echo out of patience >&2; exit 3;;
  not_finite-*) train --set optimizer.lr=1000 --set training.max_skipped_steps=0 --set optimizer.name=sgd \
    --set training.gradient_clipping=0 --set training.max_steps=200;;
  port_in_use-*) export MASTER_PORT={port}; train;;
  never_arrives-0) train --set distributed.timeout=4;;
  never_arrives-1) sleep 60;;
  disk_full-*) cd {full}; exec {fsdp} train --config {config} --run {full}/run;;
  done-*) exit 0;;
  *) train;;
esac
"""

# kind: what the first line of the error says, and what stands below it.
CAUSES = {
    "bad_configuration": ("rank 1 of 2 on .* ended with exit code 2", "optimizer.lr"),
    "missing_file": ("rank 1 of 2 on .* ended with exit code 2", "text.txt"),
    "out_of_memory": ("rank 1 of 2 on .*SIGKILL", "logs/rank-1.log"),
    "segmentation_fault": ("rank 1 of 2 on .*SIGSEGV", "logs/rank-1.log"),
    # The node with the cause tells of it two seconds after the other one has told that its peer is lost.
    "late_report": ("rank 1 of 2 on .*SIGKILL", "logs/rank-1.log"),
    "exception": ("rank 1 of 2 on .* ended with exit code 1", "RuntimeError: no more data"),
    "exit": ("rank 1 of 2 on .* ended with exit code 3", "out of patience"),
    "not_finite": ("rank [01] of 2 on .* ended with exit code 6", "not finite"),
    "port_in_use": ("rank 0 of 2 on .* ended with exit code 4", "in use"),
    "never_arrives": ("rank 0 of 2 on .* ended with exit code 4", "rank 1"),
    "disk_full": ("rank [01] of 2 on .* ended with exit code 7", "No space left on device"),
}


class NextKind(ray.train.UserCallback):
    """Runs in Ray's controller after each failure: keeps what it says, and chooses the next kind."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def after_exception(self, run_context, worker_exceptions):
        kinds = [*CAUSES, "done"]
        kind = (self.folder / "kind").read_text()
        said = "\n=====\n".join(str(one) for one in worker_exceptions.values())
        (self.folder / f"{kind}.said").write_text(said)
        (self.folder / "kind").write_text(kinds[kinds.index(kind) + 1])


class Causes(ClusterTest):
    def full_disk(self):
        """A folder on a full file system; None where this process may not mount one."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", folder], capture_output=True, check=False)
        if made.returncode != 0:
            return None
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=False)
        return folder

    def test_of_every_kind_are_named(self):
        full = self.full_disk()
        if full is None:
            print("no disk_full: this user may not mount a file system")
            del CAUSES["disk_full"]
        (self.folder / "here").mkdir()
        (self.folder / "here" / "text.txt").write_text("Some words to train on. " * 400)
        (self.folder / "kind").write_text(next(iter(CAUSES)))
        with socket.create_server(("", 0)) as used:
            script = SCRIPT.format(folder=self.folder, fsdp=FSDP, config=self.config, full=full, python="python3",
                                   port=used.getsockname()[1])
            result = self.trainer(["sh", "-c", script], name="causes", max_failures=len(CAUSES), ranks_per_node=1,
                                  callbacks=[NextKind(self.folder)]).fit()
        self.assertEqual(result.return_value["exit_code"], 0)
        for kind, (first, below) in CAUSES.items():
            with self.subTest(kind):
                for said in (self.folder / f"{kind}.said").read_text().split("\n=====\n"):
                    self.assertRegex(said.splitlines()[0], first, said)
                    self.assertIn(below, said)

    def test_a_node_without_the_command_is_named(self):
        with self.assertRaises(RunFailed) as raised:
            self.trainer(["true"], fsdp="no-such-fsdp").fit()
        self.assertRegex(raised.exception.cause, "^node .* has no no-such-fsdp in its PATH")

    def test_are_in_the_error_of_fit_with_the_exit_code(self):
        program = ["sh", "-c", "[ $RANK = 1 ] && { echo no data >&2; exit 3; }; sleep 60"]
        with self.assertRaises(RunFailed) as raised:
            self.trainer(program, ranks_per_node=1).fit()
        self.assertEqual(raised.exception.exit_code, 3)
        self.assertRegex(raised.exception.cause, "^rank 1 of 2 on .* ended with exit code 3\n.*no data")
        self.assertEqual([pid for pid in os.listdir("/proc") if pid.isdigit() and holds(pid, str(self.folder))], [])


def holds(pid, text):
    try:
        return text in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
