"""decisions_test.py FSDP: when a run stops, saves, evaluates and skips a step."""

import math

from runs import RunTest, main

NUMERIC = 6  # the exit code


class Decisions(RunTest):
    def checkpoints(self, run):
        return sorted(int(path.name.removeprefix("step-")) for path in (self.folder / run).glob("step-*"))

    def test_steps_and_epochs(self):
        short = ["data.format=text", "data.train=short.txt", "training.global_batch_size=4", "data.validation_fraction=0"]
        (self.folder / "short.txt").write_text("x" * (32 * 11 + 5))  # 11 sequences: 2 steps an epoch, 3 are dropped
        log = self.train("epochs", *short, "training.max_epochs=3")
        self.assertEqual(len(self.records("epochs")), 6)
        self.assertIn("the last 3 sequences", log)
        self.train("steps", *short, "training.max_epochs=3", "training.max_steps=5")
        self.assertEqual(len(self.records("steps")), 5)

    def test_checkpoints_by_steps_and_how_many_are_kept(self):
        self.train("three", "training.max_steps=10", "checkpoint.every_steps=2", "checkpoint.keep_last=3")
        self.assertEqual(self.checkpoints("three"), [6, 8, 10])
        self.train("all", "training.max_steps=10", "checkpoint.every_steps=4", "checkpoint.keep_last=0")
        self.assertEqual(self.checkpoints("all"), [4, 8, 10])

    def test_checkpoints_by_time(self):
        # Every step takes longer than a ten-thousandth of a minute.
        self.train("minutes", "training.max_steps=5", "checkpoint.every_minutes=0.0001", "checkpoint.keep_last=0")
        self.assertGreaterEqual(len(self.checkpoints("minutes")), 3)

    def test_the_best_checkpoint_is_kept(self):
        # The longer it trains on one letter, the worse it gets at text.
        (self.folder / "letter.txt").write_text("x" * 20000)
        (self.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
        self.train("best", "training.max_steps=12", "checkpoint.every_steps=2", "checkpoint.keep_last=1",
                   "checkpoint.keep_best=true", "eval.every_steps=2", "optimizer.lr=0.01", "data.format=text",
                   "data.train=letter.txt", "data.validation=text.txt")
        losses = {one["step"]: one["loss"] for one in self.records("best", "eval")}
        best = min(losses, key=losses.get)
        self.assertLess(best, 12)
        self.assertEqual(self.checkpoints("best"), [best, 12])

    def test_every_checkpoint_has_a_loss_of_its_own_to_be_the_best_by(self):
        self.train("run", "training.max_steps=7", "checkpoint.every_steps=3", "checkpoint.keep_last=1",
                   "checkpoint.keep_best=true", "eval.every_steps=5")
        self.assertEqual([one["step"] for one in self.records("run", "eval")], [3, 5, 6, 7])
        log = self.train("none", "checkpoint.keep_best=true", "eval.every_steps=5", "data.validation_fraction=0",
                         expect=2)
        self.assertIn("checkpoint.keep_best", log)

    def test_a_start_that_fails_leaves_no_run(self):
        sets = ["model.script=net.pt", "data.sequence_length=32"]
        text = (self.folder / "small.yaml").read_text()
        (self.folder / "small.yaml").write_text(text.replace("    model: {config: model_config_small}\n", ""))
        (self.folder / "net.pt").write_text("no script")
        self.train("run", *sets, expect=2)
        self.assertFalse((self.folder / "run" / "config.yaml").exists())
        self.train("run", "model.config=model_config_small", "training.max_steps=2")
        before = (self.folder / "run" / "config.yaml").read_text()
        self.train("run", "model.config=model_config_small", "model_config.hidden_size=64", resume=True, expect=3)
        self.assertEqual((self.folder / "run" / "config.yaml").read_text(), before)

    def test_early_stop(self):
        log = self.train("stopped", "training.max_steps=40", "eval.every_steps=2", "eval.patience=3", "optimizer.lr=3",
                         "schedule.warmup_steps=0")
        evals = [one["loss"] for one in self.records("stopped", "eval")]
        self.assertEqual(evals.index(min(evals)), len(evals) - 4, evals)
        self.assertLess(len(self.records("stopped")), 40)
        self.assertIn("early stop", log)
        self.assertEqual(self.checkpoints("stopped")[-1], len(self.records("stopped")))

    def test_evaluations(self):
        self.train("few", "training.max_steps=4", "eval.every_steps=2", "eval.batches=1", ranks=2)
        self.train("all", "training.max_steps=4", "eval.every_steps=2", "eval.batches=0")
        few, every = self.records("few", "eval"), self.records("all", "eval")
        self.assertEqual([one["step"] for one in few], [2, 4])
        self.assertEqual(few[0]["tokens"], 16 * 32)
        self.assertGreater(every[0]["tokens"], few[0]["tokens"])
        # Evaluations disturb nothing.
        self.train("none", "training.max_steps=4")
        self.assertEqual(self.losses("all"), self.losses("none"))

    def test_the_average_of_the_weights_is_what_is_evaluated(self):
        sets = ["training.max_steps=20", "eval.every_steps=20", "optimizer.lr=0.01"]
        self.train("plain", *sets)
        self.train("slow", *sets, "training.ema_decay=0.999")
        self.train("quick", *sets, "training.ema_decay=0.01")
        loss = {run: self.records(run, "eval")[-1]["loss"] for run in ("plain", "slow", "quick")}
        self.assertEqual(self.losses("plain"), self.losses("slow"))
        self.assertGreater(loss["slow"], loss["plain"] + 0.5)  # it is still near the start weights
        self.assertLess(abs(loss["quick"] - loss["plain"]), 0.05)

    def test_learning_rates_are_those_of_the_schedule(self):
        for name, factor in {"constant": lambda done: 1.0, "linear": lambda done: 1 - 0.9 * done,
                             "cosine": lambda done: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))}.items():
            self.train(name, "training.max_steps=14", f"schedule.name={name}", "schedule.warmup_steps=4",
                       "optimizer.lr=0.01")
            for one in self.records(name):
                at = one["step"] - 1
                wanted = 0.01 * ((at + 1) / 4 if at < 4 else factor((at - 4) / 10))
                self.assertAlmostEqual(one["lr"], wanted, places=12, msg=f"{name}, step {one['step']}")

    def test_steps_that_are_not_finite_are_skipped_and_then_end_the_run(self):
        for precision in ("32", "bf16-mixed", "16-mixed", "bf16-true"):
            run = f"nan-{precision}"
            log = self.train(run, f"training.precision={precision}", "optimizer.lr=1000", "schedule.warmup_steps=0",
                             "optimizer.weight_decay=1000", "optimizer.name=sgd", "training.gradient_clipping=0",
                             "training.max_skipped_steps=2", ranks=2, expect=NUMERIC)
            self.assertIn("not finite", log)
            self.assertIn("training.max_skipped_steps: 2", log)
            skipped = [one["skipped"] for one in self.records(run)]
            self.assertEqual(skipped[-3:], [True] * 3, precision)

    def test_fp16_finds_its_loss_scale(self):
        log = self.train("half", "training.precision=16-mixed", "training.max_steps=20", ranks=2)
        losses = [one["loss"] for one in self.records("half") if not one["skipped"]]
        self.assertGreater(len(losses), 10)
        self.assertLess(losses[-1], losses[0])
        if len(losses) < 20:
            self.assertIn("the loss scale is now", log)

    def test_a_step_without_counted_tokens_changes_nothing(self):
        text = '{"prompt": "' + "p" * 3000 + '", "completion": "c"}\n'
        (self.folder / "rare.jsonl").write_text(text * 3)
        log = self.train("rare", "data.train=rare.jsonl", "data.format=jsonl", "data.validation_fraction=0",
                         "training.global_batch_size=2", "training.max_steps=60", "data.shuffle=false")
        self.assertIn("none of its tokens counts", log)
        done = [one for one in self.records("rare") if one["loss"] != "nan"]
        self.assertTrue(0 < len(done) < 60)


if __name__ == "__main__":
    main()
