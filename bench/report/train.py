"""`fsdp train`: its steps against a bare loop, its time to a loss against PyTorch, and how fast it reads data."""

import pathlib
import statistics
import tempfile

from . import output, programs, train_runs
from .output import numbers, rounded
from .programs import BenchError, say

ROUNDS = 3
RANKS = (1, 2)
PARTS = ("step", "loss", "data")
TORCH = "torch"

# name in the summary -> is the goal reached? Judged for every number of ranks.
GOALS = {
    "step_vs_bare": lambda ratio: ratio <= 1.02,
    "time_to_loss_vs_torch": lambda ratio: ratio <= 1.0,
}
DATA_GOAL = 50
MAX_LOSS_DIFF = 1e-3  # relative, between evaluations of ours and of PyTorch's after the same steps


def add_options(parser):
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help="of " + ",".join(PARTS))
    parser.add_argument("--ranks", type=numbers, default=RANKS, help="numbers of ranks, by default 1,2")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each program runs")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of part step")
    parser.add_argument("--loss-steps", type=int, default=200, help="steps of part loss")
    parser.add_argument("--width", type=int, default=256, help="of the model of part loss")
    parser.add_argument("--target", type=float, help="evaluation loss to reach, by default the last one of PyTorch's")
    output.add_options(parser, "fsdp, fsdp-worker, step_bench and train_data_bench")


class Lines:
    """The lines of all runs, by part, program and number of ranks."""

    def __init__(self, emit):
        self.emit, self.lines = emit, []

    def add(self, line):
        self.lines.append(line)
        self.emit(line)

    def values(self, part, impl, ranks, field):
        found = [line for line in self.lines if (line["part"], line["impl"], line["ranks"]) == (part, impl, ranks)]
        return [value for line in found for value in (line[field] if field == "times_ms" else [line[field]])]

    def median(self, part, impl, ranks, field):
        values = self.values(part, impl, ranks, field)
        return statistics.median(values) if values and None not in values else None

    def ratio(self, part, ranks, other, other_ranks, field):
        """Ours over theirs, or None."""
        ours = self.median(part, train_runs.OURS, ranks, field)
        theirs = self.median(part, other, other_ranks, field)
        return rounded(ours / theirs) if ours and theirs else None

    def tokens_per_second(self):
        """The most that one rank took, in any training."""
        ours = [line for line in self.lines if line["impl"] == train_runs.OURS]
        return max((line["rank_tokens_per_second"] for line in ours), default=None)


def measure_steps(options, lines):
    bare = programs.our_program(options.bin, "step_bench")
    for ranks in options.ranks:
        for number in range(1, options.rounds + 1):
            for impl, run in (("bare", train_runs.bare_steps), (train_runs.OURS, train_runs.trainer_steps)):
                say(f"bench/run train: steps, {ranks} ranks, round {number} of {options.rounds}: {impl}")
                program = bare if impl == "bare" else options.fsdp
                lines.add(run(program, ranks, options.steps) | {"round": number})


def reach(run, target):
    """Seconds from the start to the first evaluation with the target loss; None: it was not reached."""
    for at in run["evaluations"]:
        if at["loss"] <= target:
            return {"seconds": at["seconds"], "train_seconds": at["train_seconds"]}
    return {"seconds": None, "train_seconds": None}


def measure_loss(options, lines):
    if options.no_peers:
        return say("bench/run train: part loss compares with PyTorch: left out")
    with tempfile.TemporaryDirectory() as folder:
        case = train_runs.LossCase(pathlib.Path(folder), options)
        for number in range(1, options.rounds + 1):
            runs = {}
            for impl, ranks in [(TORCH, 1)] + [(train_runs.OURS, ranks) for ranks in options.ranks]:
                say(f"bench/run train: loss, round {number} of {options.rounds}: {impl} on {ranks}")
                runs[impl, ranks] = case.torch() if impl == TORCH else case.ours(ranks)
            last = runs[TORCH, 1]["evaluations"][-1]["loss"]
            target = options.target or last * (1 + MAX_LOSS_DIFF)
            for run in runs.values():
                diff = max(abs(at["loss"] / other["loss"] - 1)
                           for at, other in zip(run["evaluations"], runs[TORCH, 1]["evaluations"]))
                lines.add(run | reach(run, target) | {"target": round(target, 6), "loss_diff": diff, "round": number})


def measure_data(options, lines):
    say("bench/run train: data")
    for line in programs.run("train_data_bench", [programs.our_program(options.bin, "train_data_bench")]):
        lines.add({"ranks": 1} | line)


def summarize(options, lines):
    """The summary, and the goals that were missed."""
    bare, loss = {}, {}
    if "step" in options.only:
        bare = {str(r): lines.ratio("step", r, "bare", r, "times_ms") for r in options.ranks}
    if "loss" in options.only:
        loss = {str(r): lines.ratio("loss", r, TORCH, 1, "seconds") for r in options.ranks}
    train = {r: lines.ratio("loss", int(r), TORCH, 1, "train_seconds") for r in loss}
    diffs = [line["loss_diff"] for line in lines.lines if line["part"] == "loss"]
    read, used = lines.median("data", "tokens", 1, "tokens_per_second"), lines.tokens_per_second()
    summary = {
        "bench": "train",
        "step_vs_bare": bare,
        "time_to_loss_vs_torch": loss,
        "train_seconds_vs_torch": train,
        "loss_diff": round(max(diffs), 9) if diffs else None,
        "data_vs_training": rounded(read / used) if read and used else None,
    }
    return summary, list(missed(options, summary))


def missed(options, summary):
    for name, reached in GOALS.items():
        for ranks, ratio in summary[name].items():
            if ratio is None or not reached(ratio):
                yield f"{name} is {ratio} with {ranks} ranks"
    diff = summary["loss_diff"]
    if "loss" in options.only and not (diff is not None and diff <= MAX_LOSS_DIFF):
        yield f"evaluations differ by {diff} from PyTorch's, more than {MAX_LOSS_DIFF}"
    data = summary["data_vs_training"]
    if "data" in options.only and not (data is not None and data >= DATA_GOAL):
        yield f"one thread reads {data} times as fast as a rank trains, less than {DATA_GOAL}"


def cell(value, form):
    return "-" if value is None else form.format(value)


def table(lines):
    rows = [["part", "impl", "ranks", "step", "time to loss", "without start-up", "tokens/s"]]
    for part, impl, ranks in dict.fromkeys((line["part"], line["impl"], line["ranks"]) for line in lines.lines):
        rate = "tokens_per_second" if part == "data" else "rank_tokens_per_second"
        middle = lambda field: lines.median(part, impl, ranks, field)
        row = [part, impl, str(ranks), cell(middle("times_ms") if part == "step" else None, "{:.1f} ms")]
        for field in ("seconds", "train_seconds"):
            row.append(cell(middle(field) if part == "loss" else None, "{:.1f} s"))
        rows.append(row + [cell(middle(rate), "{:,.0f}")])
    return output.aligned(rows)


def run(options):
    unknown = set(options.only) - set(PARTS)
    if unknown:
        raise BenchError(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.fsdp = programs.our_program(options.bin, "fsdp")
    programs.our_program(options.bin, "fsdp-worker")
    measures = {"step": measure_steps, "loss": measure_loss, "data": measure_data}
    with output.json_lines(options.out, "train") as emit:
        lines = Lines(emit)
        for part in PARTS:
            if part in options.only:
                measures[part](options, lines)
        print("\n" + table(lines) + "\n")
        summary, reasons = summarize(options, lines)
        for reason in reasons:
            say(f"bench/run train: {reason}")
        emit(summary | {"ok": not reasons})
