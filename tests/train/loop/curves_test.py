"""curves_test.py FSDP: one global batch gives one loss curve, whatever the number of ranks and the strategy.

FSDP_LONG=1 runs 200 steps as well, and every strategy on every number of ranks.
"""

import os
import unittest

from runs import RunTest, main

LONG = os.environ.get("FSDP_LONG") == "1"
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
# fp32 sums in another order: rounding, which training makes larger from step to step.
OVER_50_STEPS, OVER_200_STEPS = 1e-4, 1e-2


def strategy(name):
    return f"distributed.fsdp.sharding_strategy={name}"


class Curves(RunTest):
    def cases(self):
        every = [(ranks, name) for ranks in (2, 4) for name in STRATEGIES]
        return every if LONG else [(2, "FULL_SHARD"), (4, "FULL_SHARD"), (2, "SHARD_GRAD_OP"), (4, "NO_SHARD")]

    def test_every_number_of_ranks_and_strategy_has_one_curve(self):
        self.train("alone")
        alone = self.losses("alone")
        self.assertEqual(len(alone), 50)
        self.assertLess(alone[-1], 0.75 * alone[0])
        for ranks, name in self.cases():
            run = f"{name}-{ranks}"
            self.train(run, strategy(name), ranks=ranks)
            worst = self.assert_close(alone, self.losses(run), OVER_50_STEPS)
            print(f"{name} on {ranks} ranks, 50 steps: largest relative difference of the losses {worst:.1e}")

    def test_ddp_is_no_shard(self):
        self.train("ddp", "distributed.strategy=ddp", "training.max_steps=5", ranks=2)
        self.train("none", strategy("NO_SHARD"), "training.max_steps=5", ranks=2)
        self.assertEqual(self.losses("ddp"), self.losses("none"))
        self.assert_same_weights("ddp", "none")

    @unittest.skipUnless(LONG, "takes minutes")
    def test_over_200_steps(self):
        self.train("alone", "training.max_steps=200")
        for ranks in (2, 4):
            self.train(f"of-{ranks}", "training.max_steps=200", ranks=ranks)
            worst = self.assert_close(self.losses("alone"), self.losses(f"of-{ranks}"), OVER_200_STEPS)
            print(f"FULL_SHARD on {ranks} ranks, 200 steps: largest relative difference {worst:.1e}")

    def test_reproducible_mode_gives_the_same_bits(self):
        steps = 200 if LONG else 20
        sets = ["training.reproducible=true", f"training.max_steps={steps}", "model_config.dropout=0.1"]
        self.train("alone", *sets)
        for ranks in (2, 4):
            self.train(f"of-{ranks}", *sets, ranks=ranks)
            self.assertEqual(self.losses("alone"), self.losses(f"of-{ranks}"))
            self.assert_same_weights("alone", f"of-{ranks}")
        print(f"reproducible mode on 1, 2 and 4 ranks, {steps} steps: equal bits")

    def test_accumulation_and_checkpointing_change_no_curve(self):
        self.train("alone", "training.max_steps=20")
        for name, sets in {"one-microbatch": ["training.batch_size=8"],
                           "recomputed": ["distributed.fsdp.activation_checkpointing=true"],
                           "no-prefetch": ["distributed.fsdp.backward_prefetch=NONE",
                                           "distributed.fsdp.limit_all_gathers=1"],
                           "not-read-ahead": ["data.read_ahead=0"]}.items():
            self.train(name, "training.max_steps=20", *sets, ranks=2)
            self.assert_close(self.losses("alone"), self.losses(name), OVER_50_STEPS)


if __name__ == "__main__":
    main()
