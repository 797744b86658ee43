"""lora_runs_test.py FSDP: runs with `lora`, from start weights to the merged export."""

import json
import subprocess

from runs import FSDP, RunTest, main

LORA = {"lora.rank": 4, "lora.alpha": 8, "training.max_steps": 12, "optimizer.lr": 0.02, "schedule.name": "constant",
        "schedule.warmup_steps": 0}


def lora(more=(), **changes):
    """Settings of a run with LoRA. `steps` is training.max_steps, and so on."""
    names = {"steps": "training.max_steps", "lr": "optimizer.lr", "alpha": "lora.alpha"}
    values = LORA | {names[key]: value for key, value in changes.items()}
    return [f"{key}={value}" for key, value in values.items()] + list(more)


def same_bits(more=(), **changes):
    return lora(["training.reproducible=true", *more], **changes)


class Lora(RunTest):
    def fsdp(self, *words, expect=0):
        done = subprocess.run([FSDP, *map(str, words)], cwd=self.folder, env=self.environment(), text=True,
                              capture_output=True, timeout=120)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def tensors(self, path):
        info = json.loads(self.fsdp("ckpt", "inspect", path, "--json"))
        return {one["name"]: one for one in info["tensors"]}

    def make_base(self):
        """A short run without LoRA: start weights."""
        self.train("base", "training.max_steps=8", "schedule.name=constant")
        return "training.init_from=base"

    def test_saves_adapters_only(self):
        self.train("run", *lora())
        losses = self.losses("run")
        self.assertLess(losses[-1], losses[0])
        tensors = self.tensors("run")
        weights = {name: one for name, one in tensors.items() if not name.startswith(("state.", "rng", "value"))}
        layers = [f"transformer.h.{i}.attn.{layer}" for i in (0, 1) for layer in ("c_attn", "c_proj")]
        names = {f"{layer}.lora_{ab}.weight" for layer in layers for ab in "AB"}
        self.assertEqual({name for name in weights if "lora" in name}, names)
        frozen = (".wte.", ".c_fc.", "c_attn.weight")
        self.assertFalse([name for name in tensors if any(part in name for part in frozen)])
        # Rank 4 beside [32, 96] and [32, 32], twice: fp32 values and two moments each.
        numbers = 2 * (4 * 32 + 96 * 4 + 4 * 32 + 32 * 4)
        found = sum(one["bytes"] for name, one in tensors.items() if ".lora_" in name and not name.endswith(".step"))
        self.assertEqual(found, 3 * 4 * numbers)

    def test_resumes_to_the_same_bits_on_another_number_of_ranks(self):
        base = self.make_base()
        self.train("whole", *same_bits([base]))
        self.train("parts", *same_bits([base], steps=5), ranks=2)
        self.train("parts", *same_bits([base]), resume=True)
        self.assertEqual(self.losses("whole")[5:], self.losses("parts")[5:])
        self.assert_same_weights("whole", "parts")

    def test_resumes_on_weights_of_the_seed(self):
        self.train("whole", *same_bits())
        self.train("parts", *same_bits(steps=5), ranks=2)
        self.train("parts", *same_bits(), ranks=4, resume=True)
        self.assert_same_weights("whole", "parts")
        said = self.train("parts", *same_bits(["training.seed=7"], steps=20), resume=True, expect=3)
        self.assertIn("drawn from training.seed 42; it is 7 now", said)

    def test_averages_adapters(self):
        sets = [self.make_base(), "training.ema_decay=0.5"]
        self.train("whole", *same_bits(sets))
        self.train("parts", *same_bits(sets, steps=5), ranks=2)
        self.train("parts", *same_bits(sets), resume=True)
        self.assert_same_weights("whole", "parts")
        names = [name for name in self.tensors("whole") if name.startswith("average.")]
        self.assertTrue(names and all(".lora_" in name for name in names), names)
        self.assertTrue(self.fsdp("generate", "whole", "--prompt", "The ", "--max-tokens", 4))

    def test_exports_what_it_generates(self):
        base = self.make_base()
        self.train("run", *lora([base], lr=0.1))
        words = ["--prompt", "fsdp::", "--max-tokens", 20, "--seed", 3]
        expected = self.fsdp("generate", "run", *words)
        self.assertNotEqual(expected, self.fsdp("generate", "base", *words))
        self.fsdp("ckpt", "export", "--hf", "run", "merged")
        config = json.loads((self.folder / "merged" / "config.json").read_text())
        self.assertNotIn("lora", config)
        # One step that changes nothing makes a run of the exported folder.
        self.train("again", "model.pretrained=merged", "training.max_steps=1", "optimizer.lr=1e-30",
                   "schedule.warmup_steps=0")
        self.assertEqual(self.fsdp("generate", "again", *words), expected)

    def test_goes_on_with_adapters_of_another_run(self):
        base = self.make_base()
        self.train("first", *same_bits([base], steps=60, lr=0.005))
        self.train("second", *same_bits(["training.init_from=first"], steps=1, lr=1e-30))
        first, second = self.records("first"), self.records("second")
        self.assertLess(second[0]["loss"], first[0]["loss"])
        self.fsdp("ckpt", "export", "--hf", "second", "merged")

    def test_names_the_base_that_is_needed(self):
        self.train("run", *lora([self.make_base()]))
        (self.folder / "base").rename(self.folder / "moved")
        said = self.fsdp("ckpt", "export", "--hf", "run", "merged", expect=3)
        self.assertIn("base/step-00000008, which is not there", said)
        self.assertIn("--base DIR", said)
        self.fsdp("ckpt", "export", "--hf", "run", "merged", "--base", "moved")
        said = self.train("run", *lora(steps=14), resume=True, expect=3)
        self.assertIn("base/step-00000008, which is not there", said)
        self.train("run", *lora(["training.init_from=moved"], steps=14), resume=True)

    def test_refuses_what_has_no_adapters(self):
        said = self.train("refused", *lora(["lora.targets=[c_attn, q_proj]"]), expect=2)
        self.assertIn("'q_proj'", said)
        self.assertIn("c_attn, c_proj, c_fc", said)
        self.train("run", *lora())
        said = self.train("run", *lora(alpha=9, steps=14), resume=True, expect=3)
        self.assertIn("A run keeps its lora section", said)

    def test_a_dry_run_counts_what_is_trained(self):
        text = self.fsdp("train", "--config", "small.yaml", "--dry-run", "--set", "lora.rank=4")
        self.assertIn("trained 1,536 of them, in adapters of rank 4", text)
        # Two moments of 1,536 numbers in fp32 are 12 KiB; those of all parameters are 24 times as large.
        self.assertRegex(text, r"  optimizer state +12\.\d KiB ")


if __name__ == "__main__":
    main()
