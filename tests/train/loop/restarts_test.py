"""restarts_test.py FSDP: `fsdp train` under `fsdp run`: ranks that are killed or stopped, and launchers that are killed.

FSDP_LONG=1: 200 kills of ranks and 200 of launchers; otherwise 10 each. FSDP_SEED chooses other moments.
"""

import json
import os
import random
import signal
import statistics
import time
from pathlib import Path

from runs import FSDP, RunTest, kill, main, ranks_below, wait_until

LONG = os.environ.get("FSDP_LONG") == "1"
KILLS = 200 if LONG else 10
SEED = int(os.environ.get("FSDP_SEED", "1"))
RANKS = 4
EVERY = 10  # steps between checkpoints
STEPS = 150  # for each kill: the test must be there before the run is over


def sets(steps):
    return ["training.reproducible=true", f"training.max_steps={steps}", f"checkpoint.every_steps={EVERY}",
            "checkpoint.keep_last=2", "training.global_batch_size=8"]


def program_of(pid):
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""  # it has ended


def rank_of(pid):
    """None: it is no rank."""
    if program_of(pid) != "fsdp-worker":
        return None
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return next((one[5:] for one in variables if one.startswith("RANK=")), None)


def processes_in(folder):
    """Those that work in the folder: launchers, guardians and ranks of a test."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder) and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            pass
    return found


def shared_files():
    return set(os.listdir("/dev/shm"))


class Restarts(RunTest):
    restarts = 0

    def command(self, run, *words, **how):
        plain = super().command(run, *words, **how)
        if not self.restarts:
            return plain
        devices = plain.index("--devices")
        program = plain[:devices] + plain[devices + 2:]
        program[0] = "fsdp"
        return [FSDP, "run", "--nproc-per-node", str(RANKS), "--max-restarts", str(self.restarts), *program]

    def environment(self):
        (self.folder / "tmp").mkdir(exist_ok=True)
        return super().environment() | {"TMPDIR": str(self.folder / "tmp")}

    def undisturbed(self, steps):
        self.train("undisturbed", *sets(steps), ranks=2)

    def finished_steps(self):
        """The step records of the run: (time, step), and the times at which training went on."""
        path = self.folder / "killed" / "metrics.jsonl"
        if not path.exists():
            return [], []
        text = path.read_text()
        found = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        return ([(one["time"], one["step"]) for one in found if one["kind"] == "step"],
                [one["time"] for one in found if one["kind"] == "resume"])

    def last_step(self):
        return max((step for _, step in self.finished_steps()[0]), default=0)

    def recovered_at(self, moment):
        """The time of the first step that a start after `moment` finished, else None."""
        steps, resumes = self.finished_steps()
        again = next((at for at in resumes if at > moment), None)
        return None if again is None else next((at for at, _ in steps if at > again), None)

    def one_rank(self, launcher, draw):
        ranks = [pid for pid in ranks_below(launcher) if program_of(pid) == "fsdp-worker"]
        return draw.choice(ranks)

    def restart_times(self, number, kills, steps, timeout=60):
        """Sends `number` to a rank, `kills` times in one run. The seconds until the next step was done."""
        self.undisturbed(steps)
        self.restarts, draw, seconds = kills + 1, random.Random(SEED), []
        process = self.start("killed", *sets(steps), f"distributed.timeout={timeout}", "logging.every_steps=1", ranks=RANKS)
        try:
            for _ in range(kills):
                enough = self.last_step() + EVERY + draw.randint(1, EVERY)
                wait_until(lambda: self.last_step() >= enough or process.poll() is not None, 120)
                self.assertIsNone(process.poll(), self.log())
                time.sleep(draw.random() * 0.05)
                moment = time.time()
                os.kill(self.one_rank(process.pid, draw), number)
                wait_until(lambda: self.recovered_at(moment) or process.poll() is not None, 120)
                self.assertIsNone(process.poll(), self.log())
                seconds.append(self.recovered_at(moment) - moment)
            self.assertEqual(process.wait(timeout=300), 0, self.log())
        finally:
            kill([process.pid])
        self.assert_same_weights("undisturbed", "killed")
        self.assertEqual(self.log().count("starting all ranks again"), kills)
        return sorted(seconds)

    def test_killed_ranks_cost_seconds_and_no_bit(self):
        seconds = self.restart_times(signal.SIGKILL, KILLS, STEPS * KILLS)
        middle, late = statistics.median(seconds), seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
        print(f"{KILLS} kills of a rank of {RANKS}, seed {SEED}: kill to next step {middle:.2f} s p50, {late:.2f} s p95; "
              "the same bits as the undisturbed run")
        self.assertLess(middle, 20)

    def test_a_stopped_rank_is_found_and_replaced(self):
        seconds = self.restart_times(signal.SIGSTOP, 1, 4 * STEPS, timeout=5)
        print(f"a stopped rank of {RANKS}: SIGSTOP to next step {seconds[0]:.1f} s with distributed.timeout 5")

    def test_a_stopped_rank_0_is_found_during_saves(self):
        """Rank 0 serves the store, through which ranks save: requests of the others get no answer."""
        self.restarts, often = 1, ["checkpoint.every_steps=1", "distributed.timeout=4", "logging.every_steps=1"]
        plain = [one for one in sets(100000) if not one.startswith("checkpoint.every_steps")]
        process = self.start("killed", *plain, *often, ranks=RANKS)
        try:
            wait_until(lambda: self.last_step() >= 10, 60)
            rank_0 = next(pid for pid in ranks_below(process.pid) if rank_of(pid) == "0")
            moment = time.time()
            os.kill(rank_0, signal.SIGSTOP)
            wait_until(lambda: self.recovered_at(moment) or process.poll() is not None, 40)
            self.assertIsNone(process.poll(), self.log())
        finally:
            kill([process.pid])
            wait_until(lambda: not processes_in(self.folder), 15)

    def test_killed_launchers_leave_nothing_and_lose_nothing(self):
        steps, draw, before = STEPS * KILLS, random.Random(SEED), shared_files()
        self.undisturbed(steps)
        self.restarts = 1
        for number in range(KILLS):
            done = self.last_step()
            process = self.start("killed", *sets(steps), "logging.every_steps=1", ranks=RANKS, resume=True)
            if number % 2:  # at any moment of a start, or some steps later
                wait_until(lambda: self.last_step() > done or process.poll() is not None, 120)
            time.sleep(draw.random() * 0.8)
            process.kill()
            process.wait()
            wait_until(lambda: not processes_in(self.folder), 15)
        self.train("killed", *sets(steps), "logging.every_steps=1", ranks=RANKS, resume=True)
        self.assert_same_weights("undisturbed", "killed")
        self.assertEqual(shared_files() - before, set(), "shared memory of ranks that are gone")
        self.assertEqual(os.listdir(self.folder / "tmp"), [], "files of launchers that are gone")
        print(f"{KILLS} kills of the launcher, seed {SEED}: no process and no file left; the same bits")


if __name__ == "__main__":
    main()
