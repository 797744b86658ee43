"""failures_test.py FSDP WORKER: what launchers show and return where a rank of `fsdp train` fails or is asked to end."""

import os
import signal
import sys
import time
import unittest
from pathlib import Path

from launched import RUN, LaunchedTest, losses, records, timed, wait_until

NUMERIC, REQUEUE = 6, 75
LONG = "--set training.max_steps=1000000 --set checkpoint.every_steps=0"
TORCHRUN = "torchrun --standalone --no-python --nproc-per-node 4"
MPI = {"OpenMPI": "mpirun -n 4", "MPICH": "mpiexec.hydra -n 4"}
# One rank of a launcher with another command line than the others.
ONE_DIFFERS = "sh -c '[ $RANK = 2 ] && set -- --set optimizer.lr={lr}; exec fsdp train \"$@\"' sh"


def ranks_of(launcher):
    """{rank: pid} of workers below the process `launcher`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            if not words[0].endswith("fsdp-worker") or not is_below(int(folder.name), launcher):
                continue
            variables = dict(one.split("=", 1) for one in (folder / "environ").read_text().split("\0") if "=" in one)
        except (OSError, ProcessLookupError):
            continue
        for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
            if name in variables:
                found[int(variables[name])] = int(folder.name)
                break
    return found


def is_below(pid, ancestor):
    while pid > 1 and pid != ancestor:
        pid = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid == ancestor


class Failures(LaunchedTest):
    def begin_and_wait(self, command, steps=3):
        process = self.begin(command)
        wait_until(lambda: len(records(self.folder / RUN)) >= steps or process.poll() is not None, "steps")
        self.assertIsNone(process.poll(), self.output(process))
        wait_until(lambda: len(ranks_of(process.pid)) == 4, "four ranks")
        return process

    def root_cause(self, text):
        """What torchrun says of the first failure: rank, exit code, message."""
        self.assertIn("Root Cause", text)
        return text.split("Root Cause (first observed failure):", 1)[1]

    def test_torchrun_shows_the_message_of_the_failed_rank(self):
        text = self.root_cause(self.shell(f"{TORCHRUN} fsdp train --set optimizer.lr=1000 --set optimizer.name=sgd --set "
                                          "training.gradient_clipping=0 --set training.max_skipped_steps=0 --set "
                                          "training.max_steps=200", expect=1))
        self.assertIn("exitcode  : 6", text)
        self.assertIn("1 steps in a row had gradients that are not finite", text)

    def test_torchrun_shows_what_is_wrong_with_one_ranks_configuration(self):
        for lr, says in (("fast", "found 'fast'"), ("0.5", "optimizer.lr: found 0.5 on rank 2")):
            text = self.root_cause(self.shell(f"{TORCHRUN} {ONE_DIFFERS.format(lr=lr)}", expect=1))
            self.assertIn("rank      : 2 (local_rank: 2)", text)
            self.assertIn("exitcode  : 2", text)
            self.assertIn(says, text)

    def test_a_restart_by_torchrun_goes_on(self):
        process = self.begin_and_wait("torchrun --standalone --no-python --max-restarts 1 --nproc-per-node 4 fsdp train "
                                      "--set training.max_steps=400 --set checkpoint.every_steps=5", steps=20)
        began = time.monotonic()
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        text = self.end(process)
        timed("torchrun: from a kill to the end of the run", began)
        self.assertIn("restart 1 by its launcher: goes on with the run in " + RUN, text)
        self.assertEqual(sorted(losses(self.folder / RUN)), list(range(1, 401)))
        self.assertEqual(len(records(self.folder / RUN, "resume")), 1)

    def test_a_killed_rank_under_mpi(self):
        for name, command in MPI.items():
            process = self.begin_and_wait(f"{command} fsdp train --run {RUN} {LONG}")
            os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
            self.assertNotEqual(process.wait(30), 0, name)
            wait_until(lambda: not ranks_of(process.pid), "the ranks' end", 20)
            (self.folder / "runs").rename(self.folder / f"runs-{name}")

    def test_a_signal_to_one_rank_ends_all_with_75(self):
        for name, command in MPI.items():
            process = self.begin_and_wait(f"{command} fsdp train --run {RUN} {LONG}")
            os.kill(ranks_of(process.pid)[3], signal.SIGUSR1)
            text = self.end(process, REQUEUE)
            last = records(self.folder / RUN, "end")[0]
            self.assertEqual(last["reason"], "a signal to another rank", text)
            self.assertTrue((self.folder / RUN / f"step-{last['step']:08}" / "manifest.json").exists(), text)
            (self.folder / "runs").rename(self.folder / f"runs-{name}")

    def test_a_signal_to_the_launcher(self):
        for name, number in (("OpenMPI", signal.SIGUSR1), ("MPICH", signal.SIGUSR1), ("MPICH", signal.SIGTERM)):
            process = self.begin_and_wait(f"{MPI[name]} fsdp train --run {RUN} {LONG}")
            process.send_signal(number)
            text = self.end(process, REQUEUE)
            self.assertEqual(records(self.folder / RUN, "end")[0]["reason"], signal.Signals(number).name, text)
            (self.folder / "runs").rename(self.folder / f"runs-{name}-{number}")

    def test_kubernetes_ends_a_pod_with_sigterm(self):
        process = self.begin_and_wait(f"fsdp run --nproc-per-node 4 fsdp train {LONG}")
        process.send_signal(signal.SIGTERM)
        self.end(process, REQUEUE)
        self.assertEqual(len(records(self.folder / RUN, "end")), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
