"""Trains a GPT-2 the way `fsdp train` does, in plain PyTorch: one process, nothing sharded.

Usage: train_gpt.py --model FOLDER --tokens train.bin [--validation val.bin] [--steps 50 ...]

FOLDER is a Hugging Face folder, such as gpt2.py writes. Token files are those of `fsdp data prepare`. Options
have the names and defaults of the configuration's keys. Prints a JSON line per step and per evaluation, with
the fields of metrics.jsonl.
"""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

import gpt2
from token_data import IGNORED, Order, Samples


def learning_rate(options, step):
    """Of step number `step` from 0: linear warm-up, then half a cosine."""
    if step < options.warmup_steps:
        return options.lr * (step + 1) / options.warmup_steps
    progress = (step - options.warmup_steps) / (options.steps - options.warmup_steps)
    left = 0.5 * (1 + math.cos(math.pi * progress))
    return options.lr * (options.final_lr_ratio + (1 - options.final_lr_ratio) * left)


def make_optimizer(model, options):
    """AdamW that decays weights and embeddings, but no biases and no norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (options.beta1, options.beta2)
    return torch.optim.AdamW(groups, lr=options.lr, betas=betas, eps=1e-8, fused=True)


def loss_sum(model, inputs, targets):
    """Summed over the targets that count."""
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def train_step(model, optimizer, inputs, targets, options):
    """One step on a global batch. The loss is the mean over all of its tokens that count."""
    counted = (targets != IGNORED).sum().item()
    total = 0.0
    for part in zip(inputs.split(options.batch_size), targets.split(options.batch_size)):
        loss = loss_sum(model, *part) / counted
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clipping)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": total, "gradient_norm": norm.item()}, counted


@torch.no_grad()
def evaluate(model, samples, options):
    """The mean loss over the first samples, as many as `eval_batches` global batches have."""
    count = min(options.eval_batches * options.global_batch_size, len(samples))
    count -= count % options.batch_size
    total = counted = 0
    for first in range(0, count, options.batch_size):
        inputs, targets = samples.read(range(first, first + options.batch_size))
        total += loss_sum(model, inputs, targets).item()
        counted += (targets != IGNORED).sum().item()
    return {"loss": total / counted, "tokens": counted}


def emit(kind, step, fields):
    print(json.dumps({"kind": kind, "time": time.time(), "step": step} | fields), flush=True)


def train(options):
    model = gpt2.load(options.model)
    optimizer = make_optimizer(model, options)
    samples = Samples(options.tokens, options.sequence_length)
    order = Order(len(samples), options.global_batch_size, options.seed, not options.no_shuffle)
    validation = Samples(options.validation, options.sequence_length) if options.validation else None
    emit("start", 0, {"threads": torch.get_num_threads(), "torch": torch.__version__})
    tokens = 0
    for step in range(options.steps):
        rate = learning_rate(options, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        result, counted = train_step(model, optimizer, *samples.read(order.step(step)), options)
        tokens += counted
        emit("step", step + 1, result | {"lr": rate, "tokens": tokens})
        if validation and ((step + 1) % options.eval_every == 0 or step + 1 == options.steps):
            emit("eval", step + 1, evaluate(model, validation, options))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="Hugging Face folder with start weights")
    parser.add_argument("--tokens", type=pathlib.Path, required=True, help="token file to train on")
    parser.add_argument("--validation", type=pathlib.Path, help="token file for evaluation")
    parser.add_argument("--no-shuffle", action="store_true")
    integers = {"steps": 50, "batch_size": 8, "global_batch_size": 8, "sequence_length": 128, "seed": 42}
    integers |= {"warmup_steps": 0, "eval_every": 100, "eval_batches": 10}
    numbers = {"lr": 3e-4, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95}
    numbers |= {"final_lr_ratio": 0.1, "gradient_clipping": 1.0}
    for kind, defaults in ((int, integers), (float, numbers)):
        for name, value in defaults.items():
            parser.add_argument("--" + name.replace("_", "-"), type=kind, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse())
