"""own_job_test.py FSDP WORKER: a restart by a launcher goes on with the run of its own job, and with no other."""

import json
import os
import signal

from command import FSDP, main
from training import OK, USAGE, TrainTest, environment, free_port, losses, records, wait_until

STEPS = ("--set", "training.max_steps=600", "--set", "checkpoint.every_steps=10", "--set", "training.reproducible=true")
RUN = (FSDP, "run", "--nproc-per-node", "2")


def slurm(job, restarts=None, **own):
    """The variables of a batch script."""
    counter = {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    return environment(SLURM_JOB_ID=str(job), SLURM_CLUSTER_NAME="test", **counter, **own)


class OwnJob(TrainTest):
    def test_fsdp_run_goes_on_after_a_failure(self):
        words = [*RUN, "--max-restarts", "1", *self.words(*STEPS)]
        process = self.start_and_wait(words=words, steps=30)
        os.kill(self.ranks()[1], signal.SIGKILL)
        self.assertEqual(process.wait(60), OK, self.output())
        self.says(self.output(), "restart 1 by its launcher: goes on with the run in")
        self.assertEqual(len(records(self.run_folder, "resume")), 1)
        restarted = losses(self.run_folder)
        self.run_folder = self.folder / "undisturbed"
        self.train(*STEPS)
        self.assertEqual(restarted, losses(self.run_folder))

    def test_a_restart_does_not_go_on_with_a_strangers_run(self):
        self.train()
        before = (self.run_folder / "metrics.jsonl").read_text()
        text = self.typed([*RUN, "--max-restarts", "1", *self.words("--set", "training.max_steps=9")], USAGE)
        self.says(text, "holds a run already", "holds a run that another job began, and this is restart 1 by its launcher",
                  "--resume auto goes on with it all the same")
        self.assertEqual((self.run_folder / "metrics.jsonl").read_text(), before)

    def test_a_requeued_job_goes_on(self):
        self.train(env=slurm(7))
        more = ("--set", "training.max_steps=6")
        self.says(self.train(*more, expect=USAGE, env=slurm(7)), "holds a run already")
        for stranger in (slurm(8, restarts=1), slurm(7, restarts=1) | {"SLURM_CLUSTER_NAME": "other"}):
            self.says(self.train(*more, expect=USAGE, env=stranger), "another job began", "restart 1 of Slurm job")
        text = self.train(*more, env=slurm(7, restarts=1))
        self.says(text, f"restart 1 of Slurm job 7: goes on with the run in {self.run_folder}", "step-00000004, which")
        self.assertEqual(sorted(losses(self.run_folder)), [1, 2, 3, 4, 5, 6])

    def test_a_requeued_job_that_had_not_begun_begins(self):
        self.train(env=slurm(7, restarts=2))
        self.assertEqual(sorted(losses(self.run_folder)), [1, 2, 3, 4])

    def test_the_last_job_of_a_run_owns_it(self):
        self.train(env=slurm(7))
        self.train("--resume", "auto", "--set", "training.max_steps=5", env=slurm(8))
        self.assertEqual(json.loads((self.run_folder / "job.json").read_text())["slurm_job"], "test/8")
        self.train("--set", "training.max_steps=6", expect=USAGE, env=slurm(7, restarts=1))
        self.train("--resume", "auto", "--set", "training.max_steps=6")
        self.assertFalse((self.run_folder / "job.json").exists(), "started by hand")

    def test_smoke_needs_nothing_to_go_on_with(self):
        self.train(env=slurm(7))
        self.train("--mode", "smoke", env=slurm(7, restarts=1))


class Requeue(TrainTest):
    """Ranks that no launcher of ours started: they are asked one by one."""

    def start_ranks(self, *arguments):
        port = free_port()
        ranks = [self.start(*arguments, env=environment(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
                                                        MASTER_ADDR="127.0.0.1", MASTER_PORT=port)) for rank in range(2)]
        wait_until(lambda: len(records(self.run_folder)) >= 3 or any(rank.poll() is not None for rank in ranks), "steps")
        self.assertEqual([rank.poll() for rank in ranks], [None, None], self.output())
        return ranks

    def test_a_signal_to_one_rank_saves_and_gives_all_the_same_code(self):
        for number, code in ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, OK)):
            self.run_folder = self.folder / f"run-{number}"
            ranks = self.start_ranks("--set", "training.max_steps=1000000", "--set", "checkpoint.every_steps=0")
            ranks[1].send_signal(number)
            self.assertEqual([rank.wait(60) for rank in ranks], [code, code], self.output())
            last = records(self.run_folder, "end")[0]
            self.assertEqual(last["reason"], "a signal to another rank")
            self.assertTrue((self.run_folder / f"step-{last['step']:08}" / "manifest.json").exists())

    def test_a_launcher_and_a_terminal_may_send_it_twice(self):
        ranks = self.start_ranks("--set", "training.max_steps=1000000")
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
            rank.send_signal(signal.SIGTERM)
        self.assertEqual([rank.wait(60) for rank in ranks], [75, 75], self.output())


if __name__ == "__main__":
    main()
