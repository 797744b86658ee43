"""train_loss.py FSDP WORKER: `fsdp train` has the loss curve of tests/reference/train_gpt.py, a plain PyTorch trainer.

Both start from the same weights and read the same token files in the same order. Compared are the loss,
gradient norm, learning rate and number of tokens of every step, and the evaluations.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # threads of such a small model would only wait for each other

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "reference"

STEPS = 50
# Relative. Both are fp32, and their kernels may add in another order; 50 steps of training make that larger.
TOLERANCE = {"loss": 1e-4, "gradient_norm": 1e-3, "lr": 1e-12, "tokens": 0}

WORDS = ("the rank shard unit gather reduce step loss model layer of a in and to each holds sums learns reads writes "
         "before after every other first last small large").split()
SIZES = {"context": 64, "width": 64, "layers": 2, "heads": 4}
LENGTH = 64
TRAINING = {"lr": 2e-3, "weight_decay": 0.1, "warmup_steps": 5, "gradient_clipping": 0.5, "seed": 7}
EVAL = {"every": 20, "batches": 2}


def fsdp(*words):
    subprocess.run([sys.argv[1], *map(str, words)], check=True, stdout=subprocess.DEVNULL)


class Case:
    """The batch of a step, and the ending of the files that `fsdp train` reads."""

    def __init__(self, name, batch_size, global_batch_size, ending):
        self.name, self.batch_size, self.global_batch_size, self.ending = name, batch_size, global_batch_size, ending


def text_of(words, seed):
    """Always the same text. With another one the gradient may have spikes, after which rounding errors grow."""
    rng = random.Random(seed)
    return " ".join(rng.choices(WORDS, k=words))


def make_documents(folder):
    """Two epochs of it and some are 50 steps."""
    for name, words, seed in (("train", 2200, 1), ("val", 500, 2)):
        (folder / f"{name}.txt").write_text(text_of(words, seed))
        fsdp("data", "prepare", folder / f"{name}.txt", "--out", folder / f"{name}.bin")


def write_prompts(path, count, rng):
    """Prompts longer than several sequences: microbatches without a token that counts are among them."""
    words = text_of(1000, 7).split()
    with open(path, "w") as file:
        for _ in range(count):
            prompt = " ".join(rng.choices(words, k=rng.choice((3, 10, 60))))
            completion = " ".join(rng.choices(words, k=rng.choice((1, 5, 40))))
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


def make_prompts(folder):
    rng = random.Random(4)
    for name, count in (("train", 120), ("val", 20)):
        write_prompts(folder / f"{name}.jsonl", count, rng)
        fsdp("data", "prepare", folder / f"{name}.jsonl", "--out", folder / f"{name}.bin")


def start(folder):
    words = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, REFERENCE / "gpt2.py", folder / "start", *words], check=True)


def reference(folder, case):
    """Records of the PyTorch trainer."""
    values = TRAINING | {"steps": STEPS, "batch_size": case.batch_size, "global_batch_size": case.global_batch_size}
    values |= {"sequence_length": LENGTH, "eval_every": EVAL["every"], "eval_batches": EVAL["batches"]}
    values |= {"model": folder / "start", "tokens": folder / "train.bin", "validation": folder / "val.bin"}
    words = [str(word) for name, value in values.items() for word in ("--" + name.replace("_", "-"), value)]
    command = [sys.executable, "-W", "ignore", REFERENCE / "train_gpt.py", *words]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def config(folder, case, ranks):
    return {
        "distributed": {"devices": ranks, "strategy": "fsdp", "fsdp": {"sharding_strategy": "FULL_SHARD"}},
        "training": {
            "batch_size": case.batch_size,
            "global_batch_size": case.global_batch_size,
            "max_steps": STEPS,
            "gradient_clipping": TRAINING["gradient_clipping"],
            "seed": TRAINING["seed"],
        },
        "model": {"pretrained": str(folder / "start")},
        "data": {
            "train": str(folder / f"train{case.ending}"),
            "validation": str(folder / f"val{case.ending}"),
            "sequence_length": LENGTH,
        },
        "optimizer": {"lr": TRAINING["lr"], "weight_decay": TRAINING["weight_decay"]},
        "schedule": {"warmup_steps": TRAINING["warmup_steps"]},
        "eval": {"every_steps": EVAL["every"], "batches": EVAL["batches"]},
    }


def ours(folder, case, ranks):
    """Records of metrics.jsonl."""
    path, run = folder / "config.yaml", folder / f"run-{ranks}"
    path.write_text(json.dumps({"training_stages": {"only": config(folder, case, ranks)}}))  # JSON is YAML
    environment = os.environ | {"FSDP_WORKER": sys.argv[2]}
    done = subprocess.run([sys.argv[1], "train", "--config", path, "--run", run], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"fsdp train on {ranks} ranks ended with {done.returncode}:\n{done.stdout}")
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def values_of(records, kind, field):
    """By step."""
    return {record["step"]: record[field] for record in records if record["kind"] == kind}


def difference(mine, theirs):
    """The largest relative one; infinite if the steps are not the same."""
    if mine.keys() != theirs.keys() or not mine:
        return float("inf")
    return max(abs(mine[step] - theirs[step]) / abs(theirs[step]) for step in mine)


def compare(case, ranks, records, expected):
    """Prints the differences; true if all are small."""
    fields = [("step", "loss"), ("step", "gradient_norm"), ("step", "lr"), ("step", "tokens"), ("eval", "loss")]
    good, words = True, []
    for kind, field in fields:
        diff = difference(values_of(records, kind, field), values_of(expected, kind, field))
        good = good and diff <= TOLERANCE[field]
        words.append(f"{kind} {field} {diff:.1e}")
    print(f"{case.name} on {ranks} ranks: " + ", ".join(words), flush=True)
    return good


def check_reference(case, records):
    """The comparison means something: the loss falls, and clipping changes steps."""
    losses = list(values_of(records, "step", "loss").values())
    norms = values_of(records, "step", "gradient_norm").values()
    print(f"{case.name}: the reference's loss falls from {losses[0]:.3f} to {losses[-1]:.3f}", flush=True)
    return losses[-1] < 0.9 * losses[0] and max(norms) > TRAINING["gradient_clipping"]


def run(case, make_data):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(folder)
        start(folder)
        expected = reference(folder, case)
        good = check_reference(case, expected)
        for ranks in (1, 2):
            good = compare(case, ranks, ours(folder, case, ranks), expected) and good
        return good


def main():
    good = run(Case("documents", batch_size=4, global_batch_size=8, ending=".bin"), make_documents)
    good = run(Case("prompts", batch_size=1, global_batch_size=8, ending=".jsonl"), make_prompts) and good
    sys.exit(0 if good else "the curves differ")


if __name__ == "__main__":
    main()
