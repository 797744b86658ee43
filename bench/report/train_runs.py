"""The programs of bench/run train: one run of each, and what it took."""

import json
import os
import statistics
import subprocess
import tempfile
import time

from . import programs
from .programs import BenchError

OURS = "fsdp"
REFERENCE = programs.ROOT / "tests" / "reference"
PAGES = ("README.md", "docs", "src/README.md", "models/README.md", "bench/README.md")

# The model and the batch of bench/run step on the CPU.
STEP_SHAPE = {"dim": 256, "layers": 6, "vocab": 8192, "batch": 2, "seq": 128}
WARMUP = 3

# Part loss: a GPT-2 of bytes. The batch is that of a step, over all ranks.
LOSS_SHAPE = {"layers": 4, "heads": 4, "context": 128, "batch": 16, "evaluations": 8, "eval_batches": 4}
LOSS_TRAINING = {"lr": 1e-3, "seed": 42}


def run_trainer(fsdp, folder, stage, models, environment):
    """Runs `fsdp train`; returns the time it was started, and its records."""
    config = os.path.join(folder, "config.yaml")
    with open(config, "w") as file:
        json.dump({"training_stages": {"bench": stage}} | models, file)  # JSON is YAML
    run = tempfile.mkdtemp(dir=folder)
    begin = time.time()
    command = [str(fsdp), "train", "--config", config, "--run", os.path.join(run, "run")]
    done = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise BenchError(f"fsdp train ended with status {done.returncode}; it wrote:\n{done.stdout}")
    with open(os.path.join(run, "run", "metrics.jsonl")) as file:
        return begin, [json.loads(line) for line in file]


def step_stage(ranks, steps):
    return {
        "distributed": {"devices": ranks, "strategy": "fsdp"},
        "training": {"batch_size": STEP_SHAPE["batch"], "max_steps": WARMUP + steps + 1},
        "model": {"config": "model_config_bench"},
        "data": {"format": "synthetic", "sequence_length": STEP_SHAPE["seq"]},
        "optimizer": {"lr": 1e-4},
        "eval": {"every_steps": 0},
    }


def step_model():
    """The Llama of step_bench."""
    shape = STEP_SHAPE
    return {
        "model_config_bench": {
            "type": "llama",
            "vocab_size": shape["vocab"],
            "context_length": shape["seq"],
            "hidden_size": shape["dim"],
            "num_layers": shape["layers"],
            "num_heads": shape["dim"] // 64,
        }
    }


def step_line(impl, ranks, times):
    middle = statistics.median(times)
    tokens = STEP_SHAPE["batch"] * STEP_SHAPE["seq"]
    return {
        "bench": "train",
        "part": "step",
        "impl": impl,
        "ranks": ranks,
        "step_ms": round(middle, 3),
        "times_ms": [round(value, 3) for value in times],
        "rank_tokens_per_second": round(1e3 * tokens / middle),
    }


def bare_steps(program, ranks, steps):
    words = [word for name, value in STEP_SHAPE.items() for word in (f"--{name}", value)]
    command = [program, "--ranks", ranks, "--steps", steps, "--warmup", WARMUP, *words]
    return step_line("bare", ranks, programs.run("step_bench", command, timeout=600)[0]["times_ms"])


def trainer_steps(fsdp, ranks, steps):
    """The seconds of each step, and with them the mean time between the steps: that of its records and lines."""
    with tempfile.TemporaryDirectory() as folder:
        _, records = run_trainer(fsdp, folder, step_stage(ranks, steps), step_model(), {"OMP_NUM_THREADS": "1"})
    timed = [record for record in records if record["kind"] == "step"][WARMUP:]
    seconds = [record["seconds"] for record in timed[1:]]
    between = (timed[-1]["time"] - timed[0]["time"] - sum(seconds)) / len(seconds)
    line = step_line(OURS, ranks, [1e3 * (one + between) for one in seconds])
    return line | {"between_ms": round(1e3 * between, 3)}


class LossCase:
    """A model, its start weights and its data, for both trainers."""

    def __init__(self, folder, options):
        self.folder, self.fsdp, self.steps = folder, options.fsdp, options.loss_steps
        self.warmup = options.loss_steps // 20
        self.every = max(1, options.loss_steps // LOSS_SHAPE["evaluations"])
        self.python = programs.peers_python(options.python)
        sizes = {"width": options.width} | {name: LOSS_SHAPE[name] for name in ("layers", "heads", "context")}
        words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        self.check([self.python, REFERENCE / "gpt2.py", folder / "start", *words])
        pages = [programs.ROOT / page for page in PAGES]
        split = ["--validation-out", folder / "val.bin", "--validation-fraction", "0.1"]
        self.check([self.fsdp, "data", "prepare", *pages, "--out", folder / "train.bin", *split])

    def check(self, command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"{command[0]} ended with status {done.returncode}; it wrote:\n{done.stderr}")

    def line(self, impl, ranks, begin, records):
        started = next(record["time"] for record in records if record["kind"] == "start")
        steps = [record["time"] for record in records if record["kind"] == "step"]
        tokens = LOSS_SHAPE["batch"] * LOSS_SHAPE["context"] / ranks
        middle = statistics.median(after - before for before, after in zip(steps, steps[1:]))
        evaluations = [
            {"step": one["step"], "loss": one["loss"]}
            | {"seconds": round(one["time"] - begin, 3), "train_seconds": round(one["time"] - started, 3)}
            for one in records
            if one["kind"] == "eval"
        ]
        return {
            "bench": "train",
            "part": "loss",
            "impl": impl,
            "ranks": ranks,
            "steps": len(steps),
            "step_ms": round(1e3 * middle, 3),
            "rank_tokens_per_second": round(tokens / middle),
            "evaluations": evaluations,
        }

    def torch(self):
        values = LOSS_TRAINING | {"steps": self.steps, "warmup_steps": self.warmup, "eval_every": self.every}
        values |= {"batch_size": LOSS_SHAPE["batch"], "global_batch_size": LOSS_SHAPE["batch"]}
        values |= {"sequence_length": LOSS_SHAPE["context"], "eval_batches": LOSS_SHAPE["eval_batches"]}
        values |= {"model": "start", "tokens": "train.bin", "validation": "val.bin"}
        words = [str(word) for name, value in values.items() for word in ("--" + name.replace("_", "-"), value)]
        begin = time.time()
        command = [self.python, REFERENCE / "train_gpt.py", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"train_gpt.py ended with status {done.returncode}; it wrote:\n{done.stderr}")
        return self.line("torch", 1, begin, [json.loads(line) for line in done.stdout.splitlines()])

    def ours(self, ranks):
        batch = LOSS_SHAPE["batch"]
        stage = {
            "distributed": {"devices": ranks, "strategy": "fsdp"},
            "training": {
                "batch_size": batch // ranks,
                "global_batch_size": batch,
                "max_steps": self.steps,
                "seed": LOSS_TRAINING["seed"],
            },
            "model": {"pretrained": str(self.folder / "start")},
            "data": {
                "train": str(self.folder / "train.bin"),
                "validation": str(self.folder / "val.bin"),
                "sequence_length": LOSS_SHAPE["context"],
            },
            "optimizer": {"lr": LOSS_TRAINING["lr"]},
            "schedule": {"warmup_steps": self.warmup},
            "eval": {"every_steps": self.every, "batches": LOSS_SHAPE["eval_batches"]},
        }
        return self.line(OURS, ranks, *run_trainer(self.fsdp, self.folder, stage, {}, {}))
