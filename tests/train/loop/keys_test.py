"""keys_test.py FSDP: every key of the configuration changes the run, or is said to leave its numbers alone."""

import json
import subprocess
import unittest

from runs import CONFIG, FSDP, RunTest, main

STEPS = "training.max_steps=4"

# Values that change the losses of the small run.
CHANGE_LOSSES = {
    "training.batch_size": "4",  # with global_batch_size left out, see below
    "training.gradient_accumulation_steps": "2",
    "training.global_batch_size": "8",
    "training.seed": "7",
    "training.precision": "bf16-mixed",
    "training.gradient_clipping": "0.5",
    "optimizer.name": "sgd",
    "optimizer.lr": "0.01",
    "optimizer.weight_decay": "10",
    "optimizer.beta1": "0.5",
    "optimizer.beta2": "0.5",
    "optimizer.eps": "0.1",
    "optimizer.moments": "bf16",
    "schedule.warmup_steps": "3",
    "model_config.type": "llama",
    "model_config.vocab_size": "300",
    "model_config.context_length": "64",
    "model_config.hidden_size": "48",
    "model_config.num_layers": "1",
    "model_config.num_heads": "4",
    "model_config.dropout": "0.2",
    "model_config.tie_embeddings": "false",
    "model_config.norm_eps": "0.1",
    "lora.rank": "2",
    "data.format": "synthetic",
    "data.validation_fraction": "0.3",
    "data.sequence_length": "16",
    "data.shuffle": "false",
}

# Keys that another value of the file rules out: what stands there instead.
NO_GLOBAL_BATCH = ("batch_size: 2, global_batch_size: 16", "gradient_accumulation_steps: 1")
NEEDS_OTHER_FILE = {"training.batch_size": NO_GLOBAL_BATCH, "training.gradient_accumulation_steps": NO_GLOBAL_BATCH,
                    "data.format": ("train: corpus.txt, ", "")}

# The same in runs that another value makes possible: key -> (value, what both runs have).
CHANGE_LOSSES_IF = {
    "optimizer.momentum": ("0.9", ["optimizer.name=sgd"]),
    "schedule.name": ("linear", ["schedule.warmup_steps=1"]),
    "schedule.final_lr_ratio": ("0.9", ["schedule.warmup_steps=1"]),
    "schedule.decay_steps": ("3", ["schedule.name=wsd", "schedule.warmup_steps=1", "training.max_steps=6",
                                   "schedule.final_lr_ratio=0"]),
    "model_config.intermediate_size": ("64", ["model_config.type=llama"]),
    "model_config.num_kv_heads": ("1", ["model_config.type=llama"]),
    "model_config.rope_theta": ("100", ["model_config.type=llama"]),
    "lora.alpha": ("64", ["lora.rank=2"]),
    "lora.targets": ("[c_attn]", ["lora.rank=2"]),
    "data.completion_only": ("false", ["data.train=pairs.jsonl", "data.format=jsonl", "training.global_batch_size=4"]),
    "data.token_type": ("uint32", ["data.train=tokens.bin", "data.format=tokens"]),
}

# Keys that change how the work is done, and no number: key -> (value, ranks).
SAME_LOSSES = {
    "distributed.fsdp.activation_checkpointing": ("true", 2),
    "distributed.fsdp.backward_prefetch": ("BACKWARD_POST", 2),
    "distributed.fsdp.forward_prefetch": ("true", 2),
    "distributed.fsdp.limit_all_gathers": ("1", 2),
    "distributed.fsdp.cpu_offload": ("true", 2),
    "distributed.fsdp.use_orig_params": ("false", 2),
    "distributed.sync_batchnorm": ("true", 2),
    "distributed.timeout": ("77", 2),
    "training.graph": ("off", 1),
    "data.read_ahead": ("0", 1),
    "checkpoint.background": ("false", 1),
    "logging.debug": ("true", 1),
}

# Keys with a test of their own, below or in the file named.
ELSEWHERE = {
    "mode": "tests/app/train_test.py",
    "distributed.strategy": "curves_test.py",
    "distributed.num_nodes": "tests/app/train_test.py",
    "distributed.devices": "curves_test.py",
    "distributed.fsdp.enabled": "test_units",
    "distributed.fsdp.sharding_strategy": "test_units",
    "distributed.fsdp.shard_size": "test_units",
    "distributed.fsdp.wrap": "test_units",
    "distributed.fsdp.min_num_params": "test_units",
    "training.max_steps": "decisions_test.py",
    "training.max_epochs": "decisions_test.py",
    "training.max_skipped_steps": "decisions_test.py",
    "training.init_from": "tests/app/train_test.py",
    "training.reproducible": "curves_test.py",
    "training.ema_decay": "decisions_test.py",
    "model.config": "tests/app/train_test.py",
    "model.script": "models_test.py",
    "model.pretrained": "models_test.py",
    "data.train": "test_data",
    "data.validation": "test_data",
    "data.tokenizer": "test_data",
    "checkpoint.every_steps": "decisions_test.py",
    "checkpoint.every_minutes": "decisions_test.py",
    "checkpoint.keep_last": "decisions_test.py",
    "checkpoint.keep_best": "decisions_test.py",
    "eval.every_steps": "decisions_test.py",
    "eval.batches": "decisions_test.py",
    "eval.patience": "decisions_test.py",
    "logging.log_file": "test_files",
    "logging.every_steps": "test_files",
    "logging.tensorboard": "test_files",
    "wandb.use_wandb": "tests/train/watch",
    "wandb.project": "tests/train/watch",
    "wandb.tags": "tests/train/watch",
    "wandb.entity": "tests/train/watch",
    "wandb.mode": "tests/train/watch",
}


def known_keys():
    text = subprocess.run([FSDP, "config", "--explain"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in text.splitlines() if line.startswith("  ")}


class Keys(RunTest):
    def setUp(self):
        super().setUp()
        self.known, self.count = {}, 0
        (self.folder / "pairs.jsonl").write_text("".join(
            json.dumps({"prompt": f"{i} and {i} make", "completion": f" {2 * i}, as every child knows"}) + "\n"
            for i in range(200)))
        (self.folder / "tokens.bin").write_bytes(bytes(byte for i in range(9000) for byte in (i % 251, 0, 0, 0)))

    def curve(self, *sets, ranks=1):
        """Losses of a run; of runs with the same settings the first."""
        if (sets, ranks) not in self.known:
            run = f"run-{self.count}"
            self.count += 1
            steps = [] if any(one.startswith("training.max_steps") for one in sets) else [STEPS]
            self.train(run, *steps, *sets, ranks=ranks)
            self.known[sets, ranks] = self.losses(run)
        return self.known[sets, ranks]

    def test_every_key_is_here(self):
        here = [*CHANGE_LOSSES, *CHANGE_LOSSES_IF, *SAME_LOSSES, *ELSEWHERE]
        self.assertEqual(sorted(here), sorted(known_keys()))

    def test_keys_that_change_the_losses(self):
        base = self.curve()
        for key, value in CHANGE_LOSSES.items():
            with self.subTest(key):
                if key in NEEDS_OTHER_FILE:
                    text = CONFIG.replace(*NEEDS_OTHER_FILE[key])
                    (self.folder / "small.yaml").write_text(text)
                    first = self.curve("training.seed=42")
                    self.assertNotEqual(self.curve("training.seed=42", f"{key}={value}"), first)
                    self.known.clear()
                    (self.folder / "small.yaml").write_text(CONFIG)
                else:
                    self.assertNotEqual(self.curve(f"{key}={value}"), base)

    def test_keys_that_change_the_losses_with_others(self):
        for key, (value, others) in CHANGE_LOSSES_IF.items():
            with self.subTest(key):
                usual = ["data.token_type=uint16"] if key == "data.token_type" else []
                self.assertNotEqual(self.curve(*others, *usual), self.curve(*others, f"{key}={value}"))

    def test_keys_that_leave_the_numbers_alone(self):
        for key, (value, ranks) in SAME_LOSSES.items():
            with self.subTest(key):
                self.assertEqual(self.curve(ranks=ranks), self.curve(f"{key}={value}", ranks=ranks))

    def test_units(self):
        """Start records tell what was sharded, and how."""
        def start(*sets):
            run = f"units-{len(list(self.folder.iterdir()))}"
            self.train(run, "training.max_steps=2", *sets, ranks=2)
            return self.records(run, "start")[0]
        usual = start()
        whole = start("distributed.fsdp.wrap=whole_model")
        large = start("distributed.fsdp.wrap=by_size", "distributed.fsdp.min_num_params=20000")
        small = start("distributed.fsdp.wrap=by_size", "distributed.fsdp.min_num_params=2000")
        self.assertEqual(whole["units"], 1)
        self.assertGreater(usual["units"], 1)
        self.assertGreater(small["units"], large["units"])
        shards = usual["bytes_per_rank"]["shards"]
        alone = start("distributed.fsdp.sharding_strategy=NO_SHARD")["bytes_per_rank"]["shards"]
        self.assertAlmostEqual(alone / shards, 2, delta=0.05)
        hybrid = [start("distributed.fsdp.sharding_strategy=HYBRID_SHARD", *sets)["bytes_per_rank"]["shards"]
                  for sets in ([], ["distributed.fsdp.shard_size=1"])]
        self.assertEqual(hybrid, [shards, alone])
        off = start("distributed.strategy=auto", "distributed.fsdp.enabled=false")
        self.assertEqual(off["bytes_per_rank"]["shards"], alone)

    def test_data(self):
        (self.folder / "own.txt").write_text("one two three four five six seven\n" * 300)
        own = self.curve("data.train=own.txt", "data.format=text")
        self.assertNotEqual(own, self.curve())
        (self.folder / "other.txt").write_text("something else entirely, for evaluation\n" * 100)
        evals = []
        for name, sets in {"own": ["data.validation=other.txt"], "tail": []}.items():
            self.train(name, "training.max_steps=2", "eval.every_steps=2", "data.train=own.txt", "data.format=text",
                       *sets)
            evals.append(self.records(name, "eval")[0]["loss"])
        self.assertNotEqual(*evals)
        refused = self.train("none", "data.tokenizer=missing.json", expect=2)
        self.assertIn("missing.json", refused)

    def test_files(self):
        self.train("usual", STEPS)
        self.assertEqual(list((self.folder / "usual").glob("events.out.tfevents.*")), [])
        self.assertEqual([one["step"] for one in self.records("usual")], [1, 2, 3, 4])
        self.train("other", STEPS, "logging.tensorboard=true", "logging.every_steps=2", "logging.log_file=own.log")
        self.assertEqual(len(list((self.folder / "other").glob("events.out.tfevents.*"))), 1)
        self.assertEqual([one["step"] for one in self.records("other")], [2, 4])
        self.assertIn("loss", (self.folder / "own.log").read_text())


if __name__ == "__main__":
    main()
