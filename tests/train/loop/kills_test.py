"""kills_test.py FSDP: runs that are killed at random moments, and go on on other numbers of ranks.

FSDP_LONG=1: 20 kills; otherwise a sample of 4. FSDP_SEED chooses others.
"""

import json
import os
import random
import time

from runs import RunTest, kill, main, ranks_below, wait_until

LONG = os.environ.get("FSDP_LONG") == "1"
KILLS = 20 if LONG else 4
STEPS = 30 * KILLS
# 8 microbatches: a power of two, so that 1, 2, 4 and 8 ranks give the same bits.
SETS = ["training.reproducible=true", f"training.max_steps={STEPS}", "training.ema_decay=0.9",
        "checkpoint.every_steps=5", "checkpoint.keep_last=2", "eval.every_steps=20"]


class Kills(RunTest):
    def kill_at(self, run, ranks, step, launcher_too, draw):
        process = self.start(run, *SETS, ranks=ranks, resume=True)
        try:
            wait_until(lambda: process.poll() is not None or self.last_step(run) >= step, 120)
            time.sleep(draw.random() * 0.2)
            kill(ranks_below(process.pid))
            if launcher_too:
                kill([process.pid])
            process.wait(timeout=60)
        finally:
            kill([process.pid])
        self.assertNotEqual(process.returncode, 0, self.log())

    def last_step(self, run):
        path = self.folder / run / "metrics.jsonl"
        return max((one["step"] for one in self.records(run)), default=0) if path.exists() else 0

    def records(self, run, kind="step"):
        # The line that is being written may be torn.
        path = self.folder / run / "metrics.jsonl"
        text = path.read_text()
        whole = text[:text.rfind("\n") + 1]
        return [one for one in map(json.loads, whole.splitlines()) if one.get("kind") == kind]

    def test_end_as_if_nothing_had_happened(self):
        self.train("undisturbed", *SETS)
        seed = int(os.environ.get("FSDP_SEED", "1"))
        draw = random.Random(seed)
        for number in range(KILLS):
            step = self.last_step("killed") + draw.randint(1, 20)
            self.kill_at("killed", draw.choice([1, 2, 4, 8]), min(step, STEPS - 1), number % 2 == 1, draw)
        self.train("killed", *SETS, ranks=2, resume=True)
        self.assert_same_weights("undisturbed", "killed")
        # Of a step that was repeated after a kill the last record counts; every step has one, with the same loss.
        losses = {one["step"]: one["loss"] for one in self.records("killed")}
        self.assertEqual(sorted(losses), list(range(1, STEPS + 1)))
        self.assertEqual([losses[step] for step in sorted(losses)], self.losses("undisturbed"))
        self.assertEqual(self.records("killed")[-1]["tokens"], self.records("undisturbed")[-1]["tokens"])
        print(f"{KILLS} kills, {STEPS} steps, seed {seed}: the same bits as the undisturbed run")


if __name__ == "__main__":
    main()
