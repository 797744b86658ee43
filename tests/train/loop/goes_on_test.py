"""goes_on_test.py FSDP: what a run that goes on keeps, what it says, and what it refuses; ranks that do not agree."""

import json
import os
import socket
import subprocess

from runs import FSDP, RunTest, main

USAGE, CHECKPOINT = 2, 3


class GoesOn(RunTest):
    def bare(self, *words, expect=0):
        """The command without --config."""
        done = subprocess.run([FSDP, *words], cwd=self.folder, env=self.environment(), text=True, capture_output=True,
                              timeout=120)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stderr

    def rates(self, run):
        return {one["step"]: one["lr"] for one in self.records(run)}

    def group_options(self, run):
        groups = json.loads((self.latest(run) / "manifest.json").read_text())
        return json.dumps(groups)

    def latest(self, run):
        return self.folder / run / (self.folder / run / "latest").read_text().strip()

    def test_without_a_file_it_keeps_its_configuration(self):
        (self.folder / "book.txt").write_text("it was a dark and stormy night; the rain fell in torrents\n" * 200)
        own = ["data.train=book.txt", "data.format=text", "data.sequence_length=16", "optimizer.lr=0.01", "training.seed=7"]
        self.train("whole", *own, "training.max_steps=8")
        self.train("parts", *own, "training.max_steps=8", "checkpoint.every_steps=4", "checkpoint.keep_last=0")
        (self.folder / "parts" / "latest").write_text("step-00000004\n")
        self.bare("train", "--run", "parts", "--resume")
        losses = {one["step"]: one["loss"] for one in self.records("parts")}
        self.assertEqual([losses[step] for step in range(1, 9)], self.losses("whole"))
        # With a file, what that says wins, and a line says so; the rest is still the run's.
        (self.folder / "other.yaml").write_text("optimizer: {lr: 0.002}\n")
        log = self.bare("train", "--config", "other.yaml", "--run", "parts", "--resume", "--set", "training.max_steps=10")
        self.assertIn("optimizer.lr: 0.002 (other.yaml:1) instead of 0.01 (parts/config.yaml:", log)
        self.assertIn("text, ", log)

    def test_the_rate_of_the_first_step_is_the_schedules(self):
        self.train("run", "training.max_steps=6")
        self.train("run", "training.max_steps=12", resume=True)
        self.train("whole", "training.max_steps=12")
        for step in range(7, 13):
            self.assertAlmostEqual(self.rates("run")[step], self.rates("whole")[step], places=15)

    def test_options_of_the_optimizer_are_the_configurations(self):
        for key, value in {"optimizer.weight_decay": "100", "optimizer.beta1": "0.1", "optimizer.eps": "1"}.items():
            with self.subTest(key):
                for run in ("same", "other"):
                    self.train(f"{run}-{key}", "training.max_steps=3", "schedule.name=constant")
                self.train(f"same-{key}", "training.max_steps=6", "schedule.name=constant", resume=True)
                self.train(f"other-{key}", "training.max_steps=6", "schedule.name=constant", f"{key}={value}", resume=True)
                same, other = self.losses(f"same-{key}"), self.losses(f"other-{key}")
                self.assertEqual(same[:4], other[:4])
                self.assertNotEqual(same[4:], other[4:])

    def test_another_model_of_the_same_shapes_is_refused(self):
        self.train("run", "training.max_steps=3")
        log = self.train("run", "training.max_steps=5", "model_config.num_heads=4", resume=True, expect=CHECKPOINT)
        self.assertIn("was saved with n_head 2; the configuration says 4", log)

    def test_other_data_is_told(self):
        (self.folder / "book.txt").write_text("to be or not to be\n" * 300)
        own = ["data.train=book.txt", "data.format=text"]
        self.train("run", *own, "training.max_steps=2")
        (self.folder / "book.txt").write_text("to be or not to be\n" * 200)
        log = self.train("run", *own, "training.max_steps=4", resume=True)
        self.assertIn("so the steps to come see other sequences", log)

    def test_an_average_that_is_left_behind_is_told(self):
        self.train("run", "training.max_steps=2", "training.ema_decay=0.9")
        log = self.train("run", "training.max_steps=4", "training.ema_decay=0", resume=True)
        self.assertIn("has an average of the weights, and this run keeps none", log)

    def test_an_early_stop_stays_one(self):
        sets = ["training.max_steps=40", "eval.every_steps=2", "eval.patience=3", "optimizer.lr=3"]
        self.train("run", *sets)
        done = len(self.records("run"))
        self.assertLess(done, 40)
        self.assertIn("early stop", self.train("run", *sets, resume=True))
        self.assertEqual(len(self.records("run")), done)

    def test_other_weights_beneath_adapters_are_refused(self):
        self.train("base", "training.max_steps=4", "checkpoint.keep_last=1")
        lora = ["lora.rank=2", "training.init_from=base"]
        self.train("run", *lora, "training.max_steps=2")
        self.train("run", *lora, "training.max_steps=4", resume=True)
        self.train("base", "training.max_steps=9", resume=True)  # the checkpoint that was used is deleted
        log = self.train("run", *lora, "training.max_steps=6", resume=True, expect=CHECKPOINT)
        self.assertIn("are others", log)

    def test_an_imported_model_is_a_run_to_go_on_with(self):
        self.train("run", "training.max_steps=3")
        for words in (("export", "run", "hf"), ("import", "hf", "imported")):
            self.bare("ckpt", words[0], *words[1:], "--hf")
        self.train("imported", "training.max_steps=2", resume=True)
        self.assertEqual(len(self.records("imported")), 2)

    def test_a_log_that_cannot_be_written_leaves_no_run(self):
        self.train("run", "logging.log_file=/proc/none/log", expect=7)
        self.assertFalse((self.folder / "run" / "config.yaml").exists())

    def test_every_checkpoint_is_recorded(self):
        self.train("run", "training.max_steps=8", "checkpoint.every_steps=2", "checkpoint.keep_last=0")
        self.assertEqual([one["step"] for one in self.records("run", "checkpoint")], [2, 4, 6, 8])


class Evaluations(RunTest):
    def test_all_of_the_data_counts_whatever_the_batch(self):
        (self.folder / "text.txt").write_text("a few words to learn from, again and again\n" * 100)
        (self.folder / "seven.txt").write_text("".join(chr(97 + i * 7 % 26) for i in range(7 * 16)))
        found = set()
        for batch in (1, 2, 4, 8):
            self.train(f"of-{batch}", f"training.batch_size={batch}", "training.global_batch_size=8", "data.train=text.txt",
                       "data.format=text", "data.validation=seven.txt", "data.sequence_length=16", "eval.batches=0",
                       "eval.every_steps=2", "training.max_steps=2", "optimizer.lr=1.0e-12", "schedule.warmup_steps=0")
            one = self.records(f"of-{batch}", "eval")[0]
            found.add((one["tokens"], round(one["loss"], 5)))
        self.assertEqual(len(found), 1, found)
        self.assertEqual(found.pop()[0], 112)

    def test_what_counts_nothing_is_no_best(self):
        (self.folder / "none.jsonl").write_text(json.dumps({"prompt": "p" * 100, "completion": "c"}) + "\n")
        (self.folder / "some.jsonl").write_text(json.dumps({"prompt": "p", "completion": "c" * 200}) + "\n")
        sets = ["data.train=some.jsonl", "data.format=jsonl", "eval.every_steps=1", "training.global_batch_size=2",
                "schedule.warmup_steps=0"]
        self.train("run", *sets, "data.validation=none.jsonl", "training.max_steps=2")
        log = self.train("run", *sets, "data.validation=some.jsonl", "training.max_steps=4", resume=True)
        self.assertNotIn("best so far is nan", log)


class Nodes(RunTest):
    """Two nodes on this machine."""

    def two(self, *sets_of_second):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        started = []
        for node, sets in enumerate([(), sets_of_second]):
            words = self.command("run", "training.max_steps=3", "distributed.num_nodes=2", "distributed.timeout=30", *sets)
            log = open(self.folder / f"node-{node}.log", "w")
            self.addCleanup(log.close)
            started.append(subprocess.Popen(words, cwd=self.folder, stderr=log, stdout=log, env=self.environment() | {
                "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
        codes = [one.wait(timeout=90) for one in started]
        return codes, "".join((self.folder / f"node-{node}.log").read_text() for node in (0, 1))

    def test_the_same_configuration_trains(self):
        codes, log = self.two()
        self.assertEqual(codes, [0, 0], log)

    def test_another_configuration_or_other_data_is_refused(self):
        for sets, says in {("optimizer.lr=5",): "optimizer.lr: found 5", ("training.seed=5",): "training.seed: found 5",
                           ("eval.every_steps=2",): "eval.every_steps: found 2"}.items():
            codes, log = self.two(*sets)
            self.assertEqual(codes, [USAGE, USAGE], log)
            self.assertIn(says, log)
            self.assertIn("but rank 0 has", log)


if __name__ == "__main__":
    main()
