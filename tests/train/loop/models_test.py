"""models_test.py FSDP WRITE_SCRIPT: models of other origin: TorchScript, and start weights of Hugging Face folders."""

import subprocess
import sys

WRITE_SCRIPT = sys.argv.pop(2)

from runs import FSDP, RunTest, main  # noqa: E402: it reads the arguments that are left

EVALUATE = ["eval.every_steps=20", "training.max_steps=20"]
# One step that changes nothing one could see, and an evaluation of the start weights.
LOOK = ["training.max_steps=2", "eval.every_steps=1", "optimizer.lr=1.0e-12", "schedule.warmup_steps=0"]


class Models(RunTest):
    def eval_loss(self, run, at):
        return self.records(run, "eval")[at]["loss"]

    def script_sets(self):
        return ["model.script=net.pt", "data.sequence_length=32"]

    def setUp(self):
        super().setUp()
        text = (self.folder / "small.yaml").read_text()
        (self.folder / "small.yaml").write_text(text.replace("    model: {config: model_config_small}\n", ""))
        self.config = "model.config=model_config_small"

    def test_a_script_trains_sharded_as_alone(self):
        subprocess.run([WRITE_SCRIPT, self.folder / "net.pt"], check=True)
        self.train("alone", *self.script_sets(), "training.max_steps=40")
        self.train("two", *self.script_sets(), "training.max_steps=40", ranks=2)
        alone = self.losses("alone")
        self.assertLess(alone[-1], 0.9 * alone[0])
        self.assert_close(alone, self.losses("two"), 1e-4)

    def test_what_a_script_cannot_do_is_refused(self):
        subprocess.run([WRITE_SCRIPT, self.folder / "net.pt"], check=True)
        log = self.train("refused", *self.script_sets(), "distributed.fsdp.activation_checkpointing=true", expect=2)
        self.assertIn("distributed.fsdp.activation_checkpointing", log)
        self.assertIn("TorchScript", log)
        (self.folder / "net.pt").write_text("no script")
        log = self.train("broken", *self.script_sets(), expect=2)
        self.assertIn("net.pt", log)

    def test_start_weights_of_a_hugging_face_folder(self):
        for kind in ("gpt2", "llama"):
            with self.subTest(kind):
                sets = [self.config, f"model_config_small.type={kind}"]
                self.train(f"{kind}-first", *sets, *EVALUATE)
                subprocess.run([FSDP, "ckpt", "export", "--hf", f"{kind}-first", f"{kind}-hf"], cwd=self.folder,
                               check=True, capture_output=True)
                self.train(f"{kind}-second", f"model.pretrained={kind}-hf", "data.tokenizer=byte", *LOOK, ranks=2)
                trained, started = self.eval_loss(f"{kind}-first", -1), self.eval_loss(f"{kind}-second", 0)
                self.assertLess(abs(trained - started), 1e-4 * trained)
                # A run that is resumed keeps its own weights.
                self.train(f"{kind}-second", f"model.pretrained={kind}-hf", "data.tokenizer=byte", "training.max_steps=4",
                           resume=True)

    def test_another_runs_weights(self):
        self.train("first", self.config, *EVALUATE)
        self.train("second", self.config, "training.init_from=first", *LOOK)
        self.assertLess(abs(self.eval_loss("first", -1) - self.eval_loss("second", 0)), 1e-4)
        log = self.train("third", self.config, "training.init_from=nowhere", *LOOK, expect=2)
        self.assertIn("nowhere", log)


if __name__ == "__main__":
    main()
