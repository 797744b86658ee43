"""Training steps of a Llama: ours against PyTorch's FSDP2 and DDP (CPU), or FSDP2 in bf16 (CUDA)."""

import contextlib
import math
import statistics
import tempfile

from . import output, programs
from .output import numbers, rounded
from .programs import BenchError, say

OURS = "fsdp"
REPRODUCIBLE = "reproducible"  # ours, with the same bits for every number of ranks
CAPTURED = "captured"  # ours, with forward and backward as a CUDA graph
DETERMINISTIC = "deterministic"  # ours, with LibTorch's deterministic kernels, as reproducible mode needs them
BEFORE = "before"  # ours, as of an earlier commit
ROUNDS = 3
WARMUP = 3
CPU_RANKS = (1, 2, 4)

SMALL = {"dim": 256, "layers": 6, "vocab": 8192, "batch": 2, "seq": 128, "steps": 15}
CUDA_SIZES = {
    "953M": {"dim": 2048, "layers": 16, "vocab": 32000, "batch": 8, "seq": 2048, "steps": 15},
    "134M": {"dim": 768, "layers": 12, "vocab": 32000, "batch": 2, "seq": 256, "steps": 60},
}

# name in the summary -> is the goal reached? Judged from 2 ranks on.
GOALS = {
    "vs_fsdp2": lambda ratio: ratio <= 0.6,
    "vs_ddp": lambda ratio: ratio <= 0.85,
    "pss_vs_fsdp2": lambda ratio: ratio < 1,
    "pss_vs_ddp": lambda ratio: ratio < 1,
}
MAX_LOSS_DIFF = 1e-4
MAX_OFF_UNIFORM = 1.0  # of the first loss from ln(vocab), where start weights differ


def add_options(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=numbers, help="group sizes, by default 1,2,4; cpu only")
    parser.add_argument("--sizes", type=lambda text: text.split(","), help="of 953M,134M; cuda only")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each program runs")
    parser.add_argument("--steps", type=int, help="timed steps of each run, by default 15 (134M: 60)")
    parser.add_argument("--warmup", type=int, default=WARMUP)
    parser.add_argument("--before", metavar="COMMIT", help="ours as of this commit too, built first; cpu only")
    output.add_options(parser, "step_bench")


class Case:
    """One workload: the model, its ranks, and the programs that train it in turn."""

    def __init__(self, key, ranks, shape, options):
        self.key, self.ranks, self.vocab = key, ranks, shape["vocab"]
        self.shape = shape | {"warmup": options.warmup} | ({"steps": options.steps} if options.steps else {})
        self.programs = {}

    def words(self):
        sizes = [word for name, value in self.shape.items() for word in (f"--{name}", value)]
        return ["--ranks", self.ranks, *sizes]

    def run(self, impl):
        lines = programs.run(impl, self.programs[impl] + self.words(), timeout=600)
        if len(lines) != 1 or lines[0]["impl"] != (OURS if impl == BEFORE else impl):
            raise BenchError(f"{impl} printed {len(lines)} lines where one was due")
        if not all(loss is not None and math.isfinite(loss) for loss in lines[0]["losses"]):
            raise BenchError(f"{impl} has a loss that is not finite: {lines[0]['losses']}")
        return {"case": self.key} | lines[0] | {"impl": impl}


def cpu_cases(options):
    ours, cases = programs.our_program(options.bin, "step_bench"), []
    before = programs.build_commit(options.before, "step_bench") if options.before else None
    for ranks in options.ranks or CPU_RANKS:
        case = Case(str(ranks), ranks, SMALL, options)
        case.programs[OURS] = [ours]
        if before:
            case.programs[BEFORE] = [before]
        case.programs[REPRODUCIBLE] = [ours, "--reproducible"]
        if not options.no_peers:
            for mode in ("fsdp2", "ddp"):
                case.programs[mode] = peer(options) + ["--mode", mode]
        if ranks == 1:
            case.programs["plain"] = [ours, "--plain"]
        cases.append(case)
    return cases


def cuda_cases(options):
    if options.before:
        raise BenchError("--before compares on the CPU only")
    unknown = set(options.sizes or ()) - set(CUDA_SIZES)
    if unknown:
        raise BenchError(f"no size {', '.join(sorted(unknown))}; there are {', '.join(CUDA_SIZES)}")
    ours, cases = programs.our_program(options.bin, "step_bench"), []
    for key in options.sizes or CUDA_SIZES:
        case = Case(key, 1, CUDA_SIZES[key], options)
        mode = ["--device", "cuda", "--bf16"]
        case.programs[OURS] = [ours, *mode]
        case.programs[CAPTURED] = [ours, *mode, "--capture"]
        case.programs[REPRODUCIBLE] = [ours, *mode, "--reproducible"]
        case.programs[DETERMINISTIC] = [ours, *mode, "--deterministic"]
        if not options.no_peers:
            case.programs["fsdp2"] = peer(options) + mode
        cases.append(case)
    return cases


def peer(options):
    return [programs.peers_python(options.python), programs.PEERS / "torch_step.py"]


@contextlib.contextmanager
def same_start(cases, options):
    """Gives all programs the same weights and tokens, while it lasts."""
    with tempfile.TemporaryDirectory() as folder:
        largest = max(cases, key=lambda case: case.ranks)
        programs.run("torch_step", peer(options) + ["--write", folder] + largest.words())
        for case in cases:
            for command in case.programs.values():
                command += ["--data", folder]
        yield


class Runs:
    """The lines of every case and program."""

    def __init__(self):
        self.lines = {}

    def add(self, line):
        self.lines.setdefault((line["case"], line["impl"]), []).append(line)

    def get(self, key, impl, field):
        """The median over all rounds, for times over all their steps; None where nothing was measured."""
        lines = self.lines.get((key, impl), [])
        values = [value for line in lines for value in (line[field] if field == "times_ms" else [line[field]])]
        return statistics.median(values) if values else None

    def ratio(self, key, other, field, impl=OURS):
        """Ours over theirs, or None."""
        ours, theirs = self.get(key, impl, field), self.get(key, other, field)
        return rounded(ours / theirs) if ours and theirs else None

    def losses(self, key, impl):
        """One list per round."""
        return [line["losses"] for line in self.lines.get((key, impl), [])]

    def loss_diff(self, key):
        """The largest difference between our loss and anybody's, at any step."""
        others = [losses for k, impl in self.lines if k == key and impl != OURS for losses in self.losses(k, impl)]
        pairs = [pair for ours in self.losses(key, OURS) for theirs in others for pair in zip(ours, theirs)]
        return max((abs(ours - theirs) for ours, theirs in pairs), default=None)


def measure(cases, rounds, emit, bench="step"):
    """Runs the programs of each case in turn, several times over."""
    runs = Runs()
    for case in cases:
        for number in range(1, rounds + 1):
            for impl in case.programs:
                say(f"bench/run {bench}: {case.key}, round {number} of {rounds}: {impl}")
                line = case.run(impl) | {"round": number}
                emit(line)
                runs.add(line)
    return runs


def missed_cpu(summary):
    for name, reached in GOALS.items():
        for key, ratio in summary[name].items():
            if ratio is None or not reached(ratio):
                yield f"{name} is {ratio} with {key} ranks"
    diff = summary["loss_diff"]
    if diff is None or not diff <= MAX_LOSS_DIFF:
        yield f"losses differ by {diff}, more than {MAX_LOSS_DIFF}"


def summarize_cpu(runs, cases):
    keys = [case.key for case in cases if case.ranks > 1]
    of = lambda other, field: {key: runs.ratio(key, other, field) for key in keys}
    diffs = [diff for case in cases if (diff := runs.loss_diff(case.key)) is not None]
    summary = {
        "bench": "step",
        "device": "cpu",
        "vs_fsdp2": of("fsdp2", "times_ms"),
        "vs_ddp": of("ddp", "times_ms"),
        "pss_vs_fsdp2": of("fsdp2", "pss_growth_kib"),
        "pss_vs_ddp": of("ddp", "pss_growth_kib"),
        "loss_diff": round(max(diffs), 9) if diffs else None,
        "reproducible_vs_ours": {c.key: runs.ratio(c.key, OURS, "times_ms", REPRODUCIBLE) for c in cases},
        "vs_before": {case.key: runs.ratio(case.key, BEFORE, "times_ms") for case in cases},
        "w1_vs_fsdp2": runs.ratio("1", "fsdp2", "times_ms"),
        "w1_vs_plain": runs.ratio("1", "plain", "times_ms"),
    }
    return summary, list(missed_cpu(summary))


# name in the summary, size -> the most that reaches the goal.
CUDA_GOALS = {("vs_fsdp2", "953M"): 1.0, ("memory_vs_fsdp2", "953M"): 1.0, ("captured_vs_fsdp2", "134M"): 0.35}


def missed_cuda(runs, cases, summary):
    for (name, key), goal in CUDA_GOALS.items():
        if (ratio := summary[name].get(key)) is not None and ratio > goal:
            yield f"{name} is {ratio} at {key}, more than {goal}"
    for case in cases:
        for impl in case.programs:
            for losses in runs.losses(case.key, impl):
                if abs(losses[0] - math.log(case.vocab)) > MAX_OFF_UNIFORM:
                    yield f"{impl} at {case.key} starts with a loss of {losses[0]}"


def summarize_cuda(runs, cases):
    of = lambda field, impl=OURS: {case.key: runs.ratio(case.key, "fsdp2", field, impl) for case in cases}
    summary = {
        "bench": "step",
        "device": "cuda",
        "vs_fsdp2": of("times_ms"),
        "memory_vs_fsdp2": of("peak_gib"),
        "captured_vs_fsdp2": of("times_ms", CAPTURED),
        "reproducible_vs_ours": {c.key: runs.ratio(c.key, OURS, "times_ms", REPRODUCIBLE) for c in cases},
        "deterministic_vs_ours": {c.key: runs.ratio(c.key, OURS, "times_ms", DETERMINISTIC) for c in cases},
        "captured_memory_vs_fsdp2": of("peak_gib", CAPTURED),
    }
    return summary, list(missed_cuda(runs, cases, summary))


def memory_cells(runs, key, impl, device):
    if device == "cuda":
        return [f"{runs.get(key, impl, 'peak_gib'):.2f} GiB"]
    fields = ("pss_growth_kib", "pss_peak_kib")
    return [f"{runs.get(key, impl, field) / 1024:.0f} MiB" for field in fields]


def table(runs, cases, device):
    memory = ["peak memory"] if device == "cuda" else ["PSS growth", "in a step"]
    rows = [["ranks" if device == "cpu" else "size", "impl", "step", "ours", *memory, "first loss", "last loss"]]
    for case in cases:
        for impl in case.programs:
            ratio = runs.ratio(case.key, impl, "times_ms")
            losses = runs.losses(case.key, impl)[0]
            row = [case.key, impl, f"{runs.get(case.key, impl, 'times_ms'):.1f} ms"]
            row += ["-" if impl == OURS or ratio is None else f"{ratio:.2f}x"]
            row += memory_cells(runs, case.key, impl, device)
            rows.append(row + [f"{losses[0]:.5f}", f"{losses[-1]:.5f}"])
    return output.aligned(rows)


def run(options):
    cpu = options.device == "cpu"
    cases = cpu_cases(options) if cpu else cuda_cases(options)
    start = same_start(cases, options) if cpu and not options.no_peers else contextlib.nullcontext()
    with start, output.json_lines(options.out, f"step-{options.device}") as emit:
        runs = measure(cases, options.rounds, emit)
        print("\n" + table(runs, cases, options.device) + "\n")
        summary, missed = summarize_cpu(runs, cases) if cpu else summarize_cuda(runs, cases)
        for reason in missed:
            say(f"bench/run step: {reason}")
        emit(summary | {"ok": not missed})
