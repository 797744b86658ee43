"""dry_run_test.py FSDP: what `fsdp train --dry-run` says about models, ranks and bytes, with the worker that makes the plan."""

import os
import re

from config_files import ConfigTest, main

WORKER = {"FSDP_WORKER": os.environ["FSDP_WORKER"]}
NODES = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
PARAMETERS = {  # as the publishers of these models count them
    "gpt2_124M": 124439808, "gpt2_355M": 354823168, "gpt2_774M": 774030080, "gpt2_1.5B": 1557611200,
    "1B": 1235814400, "1.7B": 1711376384, "3B": 3212749824, "7B": 6738415616, "8B": 8030261248, "70B": 70553706496}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "bytes": 1}


class DryRunTest(ConfigTest):
    def plan(self, *arguments, **variables):
        return self.accepted("train", "--dry-run", *arguments, **variables, **WORKER)[0]

    def bytes_of(self, plan, kind):
        number, unit = re.search(rf"^  {kind} +([\d.]+) (\w+)", plan, re.MULTILINE).groups()
        return float(number) * UNITS[unit]

    def test_models(self):
        for name, count in PARAMETERS.items():
            self.assertIn(f"model_config_{name}: {count:,} parameters in ",
                          self.plan("--model-config", f"model_config_{name}", "--devices", "2"))

    def test_the_five_lines(self):
        for line, ranks in (("--fsdp-config single_node_fsdp --devices 4", "4 CPU ranks, FULL_SHARD"),
                            ("--fsdp-config multi_node_fsdp --num-nodes 2 --devices 8", "16 CPU ranks on 2 nodes"),
                            ("--fsdp-config large_scale_fsdp --num-nodes 4 --devices 8", "32 CPU ranks on 4 nodes"),
                            ("--stage stage2 --fsdp-config multi_node_fsdp --devices 8", "32 CPU ranks on 4 nodes")):
            self.assertIn(f"ranks   {ranks}", self.plan(*line.split(), **(NODES if "node" in ranks else {})))
        plan = self.plan(*"--mode production --stage stage1 --model-config model_config_1.7B --devices 8 "
                          "--precision bf16-mixed".split())
        self.assertIn("model_config_1.7B: 1,711,376,384 parameters in 26 units, bf16-mixed", plan)
        self.assertIn("batch   64 sequences a step = 8 x 1 microbatches x 8 ranks", plan)

    def test_bytes_are_a_share_of_the_whole(self):
        whole = 4 * PARAMETERS["gpt2_124M"]
        model = ("--model-config", "model_config_gpt2_124M")
        for devices in (1, 4):
            plan = self.plan(*model, "--devices", devices)
            self.assertAlmostEqual(self.bytes_of(plan, "parameters") / (whole / devices), 1, delta=0.02)
            self.assertAlmostEqual(self.bytes_of(plan, "optimizer state") / (2 * whole / devices), 1, delta=0.02)
        plan = self.plan(*model, "--devices", 4, "--set", "distributed.strategy=ddp", "--set", "optimizer.moments=bf16")
        self.assertIn("4 CPU ranks, NO_SHARD", plan)
        self.assertAlmostEqual(self.bytes_of(plan, "parameters") / whole, 1, delta=0.02)
        self.assertAlmostEqual(self.bytes_of(plan, "optimizer state") / whole, 1, delta=0.02)

    def test_nothing_is_written(self):
        self.plan()
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    main()
