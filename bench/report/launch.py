"""Starting ranks: `fsdp run` against torchrun, and what the time to the first step of `fsdp train` goes into."""

import pathlib
import statistics
import subprocess
import tempfile
import time

from . import output, programs, train_runs
from .output import numbers, rounded
from .programs import BenchError, say

RANKS = 4
GOAL = 0.1  # of torchrun's time
PARTS = ("launch", "libraries", "ranks", "model", "data", "weights", "step", "whole")
COMMON = {
    "model_config_bench": {"type": "gpt2", "vocab_size": 257, "context_length": 64, "hidden_size": 64, "num_layers": 2,
                           "num_heads": 4},
    "logging": {"every_steps": 1},
}


def add_options(parser):
    parser.add_argument("--ranks", type=numbers, default=(1, 2, 4), help="of `fsdp train`, by default 1,2,4")
    parser.add_argument("--rounds", type=int, default=5, help="how often each program runs")
    output.add_options(parser, "fsdp and fsdp-worker")


def seconds_of(command):
    begin = time.monotonic()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.monotonic() - begin


def measure_start(options, emit):
    """Seconds of four ranks that do nothing: {launcher: median}."""
    ranks = ["--standalone", "--nproc-per-node", str(RANKS)]
    commands = {"fsdp run": [options.fsdp, "run", *ranks, "true"]}
    if not options.no_peers:
        commands["torchrun"] = [programs.peers_python(options.python), "-m", "torch.distributed.run", *ranks, "--no-python", "true"]
    seconds = {launcher: [] for launcher in commands}
    for number in range(options.rounds):
        for launcher, command in commands.items():
            say(f"bench/run launch: {RANKS} ranks of `true`, round {number + 1} of {options.rounds}: {launcher}")
            seconds[launcher].append(seconds_of(command))
    for launcher, values in seconds.items():
        emit({"bench": "launch", "launcher": launcher, "ranks": RANKS, "seconds": [round(value, 4) for value in values]})
    return {launcher: statistics.median(values) for launcher, values in seconds.items()}


def first_step(options, folder, ranks):
    """Seconds from the command to the end of the first step, by part."""
    stage = {
        "distributed": {"devices": ranks, "strategy": "fsdp"},
        "model": {"config": "model_config_bench"},
        "training": {"batch_size": 1, "max_steps": 1},
        "data": {"format": "synthetic", "sequence_length": 32},
        "eval": {"every_steps": 0},
    }
    began, records = train_runs.run_trainer(options.fsdp, folder, stage, COMMON, {})
    start = next(one for one in records if one["kind"] == "start")
    step = next(one for one in records if one["kind"] == "step")
    parts = start["seconds"]
    launch = {"launch": start["time"] - began - sum(parts.values())}
    return launch | parts | {"step": step["time"] - start["time"], "whole": step["time"] - began}


def measure_first_step(options, emit):
    rows = []
    for ranks in options.ranks:
        say(f"bench/run launch: the first step of fsdp train, {ranks} ranks")
        with tempfile.TemporaryDirectory() as folder:
            runs = [first_step(options, folder, ranks) for _ in range(options.rounds)]
        parts = list(dict.fromkeys(part for run in runs for part in run))
        line = {part: round(statistics.median(run.get(part, 0) for run in runs), 3) for part in parts}
        emit({"bench": "launch", "launcher": "fsdp train", "ranks": ranks, "seconds": line})
        rows.append((ranks, line))
    return rows


def table(rows):
    found = {part for _, line in rows for part in line}
    parts = [part for part in PARTS if part in found]
    return output.aligned([["ranks", *parts]] + [[str(ranks), *(f"{line.get(part, 0):.3f}" for part in parts)] for ranks, line in rows])


def run(options):
    options.fsdp = programs.our_program(options.bin, "fsdp")
    programs.our_program(options.bin, "fsdp-worker")
    with output.json_lines(options.out, "launch") as emit:
        start = measure_start(options, emit)
        rows = measure_first_step(options, emit)
        print("\n" + table(rows) + "\n")
        ratio = rounded(start["fsdp run"] / start["torchrun"]) if "torchrun" in start else None
        emit({
            "bench": "launch",
            "start_seconds": round(start["fsdp run"], 4),
            "start_vs_torchrun": ratio,
            "first_step_seconds": {str(ranks): line["whole"] for ranks, line in rows},
            "ok": ratio is None or ratio <= GOAL,
        })
