"""slurm_test.py FSDP WORKER: docs/train.sbatch on a real Slurm of two nodes: preempted, requeued, and done."""

import re
import shutil
import subprocess
import sys
import time
import unittest

from launched import CONFIG, ROOT, RUN, LaunchedTest, losses, records, timed, wait_until

STEPS = 600


class Slurm(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.start_slurm()
        shutil.copy(ROOT / "docs" / "train.sbatch", self.folder)
        self.configure(STEPS)

    def configure(self, steps):
        text = CONFIG.replace("max_steps: 50", f"max_steps: {steps}").replace("every_steps: 25", "every_steps: 0")
        (self.folder / "config.yaml").write_text(text)

    def slurm(self, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
                              env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def submit(self, *words):
        return self.slurm("sbatch", "--parsable", "--export=ALL", *words, "train.sbatch").strip()

    def state(self, job):
        """(state, how often it was requeued)."""
        text = self.slurm("scontrol", "show", "job", job)
        return re.search(r"JobState=(\w+)", text)[1], int(re.search(r"Restarts=(\d+)", text)[1])

    def log(self):
        return "\n".join(path.read_text() for path in self.folder.glob("train-*.log"))

    def wait_for_steps(self, steps):
        wait_until(lambda: len(records(self.folder / RUN)) >= steps, f"{steps} steps; {self.log()}")

    def wait_for_end(self, job, state="COMPLETED", restarts=0):
        wait_until(lambda: self.state(job) == (state, restarts), f"the end of job {job}; {self.log()}", 100)

    def went_on(self):
        """The run was stopped once, saved, and went on where it had stopped."""
        stopped = records(self.folder / RUN, "end")[0]
        resumed = records(self.folder / RUN, "resume")
        self.assertEqual([one["step"] for one in resumed], [stopped["step"]], self.log())
        self.assertEqual(sorted(losses(self.folder / RUN)), list(range(1, STEPS + 1)))
        (self.folder / RUN).rename(self.folder / "requeued")
        self.shell(f"fsdp train --devices 4 --run {RUN}")
        self.same_weights("requeued", RUN)

    def test_a_signal_before_the_end_requeues_the_job(self):
        began = time.monotonic()
        job = self.submit()
        self.wait_for_steps(10)
        self.slurm("scancel", "--signal=TERM", job)
        wait_until(lambda: self.state(job)[1] == 1, f"the requeue; {self.log()}")
        self.wait_for_end(job, restarts=1)
        self.assertIn(f"restart 1 of Slurm job {job}: goes on with the run in {RUN}", self.log())
        self.went_on()
        timed("Slurm: a job that is stopped, requeued and finished", began)

    def test_a_job_of_higher_priority_preempts(self):
        began = time.monotonic()
        job = self.submit("--partition=low")
        self.wait_for_steps(10)
        first = self.slurm("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null",
                           "--wrap", "sleep 1").strip()
        self.wait_for_end(first)
        wait_until(lambda: self.state(job)[1] == 1, f"the requeue; {self.log()}")
        self.wait_for_end(job, restarts=1)
        self.went_on()
        timed("Slurm: a job that is preempted, requeued and finished", began)

    def test_a_cancelled_job_saves_and_stays_cancelled(self):
        job = self.submit()
        self.wait_for_steps(10)
        self.slurm("scancel", job)
        self.wait_for_end(job, "CANCELLED")
        wait_until(lambda: "Exited with exit code 75" in self.log(), f"the end of the script; {self.log()}")
        last = records(self.folder / RUN, "end")[0]
        self.assertTrue((self.folder / RUN / f"step-{last['step']:08}" / "manifest.json").exists(), self.log())
        wait_until(lambda: not self.slurm("squeue", "-h"), "an empty queue")
        self.assertEqual(self.state(job), ("CANCELLED", 0), self.log())

    def test_another_job_does_not_go_on_with_the_run(self):
        self.configure(5)
        self.wait_for_end(self.submit())
        self.wait_for_end(self.submit(), "FAILED")
        self.assertIn(f"{RUN} holds a run already", self.log())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
