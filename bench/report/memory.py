"""Memory for time: recomputation and offload against FSDP2 (CUDA), prefetch policies (CPU)."""

import contextlib
import math

from . import output, programs, step
from .output import numbers
from .programs import say

CUDA = {
    "fsdp": [],
    "operators": ["--operators"],
    "recompute": ["--recompute"],
    "offload": ["--offload"],
    "offload_bf16_moments": ["--offload", "--bf16-moments"],
    "offload_in_backward": ["--offload", "--step-in-backward"],
}
PEERS = {
    "fsdp2": [],
    "fsdp2_recompute": ["--recompute"],
    "fsdp2_offload": ["--offload"],
    "fsdp2_compile": ["--compile"],
    "fsdp2_compile_recompute": ["--compile", "--recompute"],
}
POLICIES = ("none", "post", "pre")
# name in the summary -> ours, theirs, the most that reaches the goal in time and in memory.
RATIOS = {
    "vs_fsdp2": ("fsdp", "fsdp2", 1.0, 1.0),
    "operators_vs_fsdp2": ("operators", "fsdp2", math.inf, 1.0),
    "recompute_vs_fsdp2": ("recompute", "fsdp2_recompute", 1.0, 1.0),
    "offload_vs_fsdp2": ("offload", "fsdp2_offload", 0.5, 1.0),
    "offload_bf16_moments_vs_fsdp2": ("offload_bf16_moments", "fsdp2_offload", math.inf, 1.0),
    "offload_in_backward_vs_fsdp2": ("offload_in_backward", "fsdp2_offload", 0.5, 1.0),
}


def add_options(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="group sizes, by default 2,4; cpu only")
    parser.add_argument("--rounds", type=int, default=2, help="how often each program runs")
    parser.add_argument("--steps", type=int, help="timed steps of each run, by default 15")
    parser.add_argument("--warmup", type=int, default=step.WARMUP)
    parser.add_argument("--no-compile", action="store_true", help="leave out what takes longest, compiled FSDP2")
    output.add_options(parser, "step_bench")


def cases_of(options):
    ours = programs.our_program(options.bin, "step_bench")
    if options.device == "cpu":
        cases = [step.Case(str(ranks), ranks, step.SMALL, options) for ranks in options.ranks]
        for case in cases:
            case.programs = {policy: [ours, "--prefetch", policy] for policy in POLICIES}
        return cases
    case = step.Case("953M", 1, step.CUDA_SIZES["953M"], options)
    mode = ["--device", "cuda", "--bf16"]
    case.programs = {name: [ours, *mode, *words] for name, words in CUDA.items()}
    if not options.no_peers:
        peers = {name: words for name, words in PEERS.items() if not (options.no_compile and "--compile" in words)}
        case.programs |= {name: step.peer(options) + mode + words for name, words in peers.items()}
    return [case]


def summarize_cuda(runs):
    summary, missed = {"bench": "memory", "device": "cuda"}, []
    for name, (ours, theirs, time, memory) in RATIOS.items():
        found = {
            "time": runs.ratio("953M", theirs, "times_ms", ours),
            "peak": runs.ratio("953M", theirs, "peak_gib", ours),
        }
        summary[name] = found
        for field, goal in (("time", time), ("peak", memory)):
            if found[field] is None or found[field] > goal:
                missed.append(f"{name}: {field} {found[field]}, goal {goal}")
    return summary, missed


def summarize_cpu(runs, cases):
    of = lambda policy: {case.key: runs.ratio(case.key, "none", "times_ms", policy) for case in cases}
    return {"bench": "memory", "device": "cpu", "pre_vs_none": of("pre"), "post_vs_none": of("post")}, []


def table(runs, cases, device):
    rows = [["case", "impl", "step", *(["peak memory"] if device == "cuda" else ["PSS growth", "in a step"])]]
    for case in cases:
        for impl in case.programs:
            row = [case.key, impl, f"{runs.get(case.key, impl, 'times_ms'):.1f} ms"]
            rows.append(row + step.memory_cells(runs, case.key, impl, device))
    return output.aligned(rows)


def run(options):
    cases = cases_of(options)
    with contextlib.ExitStack() as stack:
        emit = stack.enter_context(output.json_lines(options.out, f"memory-{options.device}"))
        runs = step.measure(cases, options.rounds, emit, "memory")
        print("\n" + table(runs, cases, options.device) + "\n")
        summary, missed = summarize_cuda(runs) if options.device == "cuda" else summarize_cpu(runs, cases)
        for reason in missed:
            say(f"bench/run memory: {reason}")
        emit(summary | {"ok": not missed})
