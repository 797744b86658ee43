"""The runs behind the claims: sizes, turns of timed programs, and the search for the largest model."""

import math
import statistics

from . import programs
from .programs import BenchError, say

MIB = 1 << 20
FLOAT = 4  # bytes
STATE_VALUES = 4  # per parameter: itself, its gradient, two moments of AdamW
DIM_STEP = 4  # models of the search differ by at least this much in width

DEEP = {"dim": 256, "layers": 12, "heads": 4, "vocab": 2048, "batch": 1, "seq": 32, "steps": 1, "warmup": 1}
SMALL = {"dim": 256, "layers": 6, "heads": 4, "vocab": 8192, "batch": 2, "seq": 128, "steps": 6, "warmup": 2}
SEARCHED = {"layers": 24, "heads": 2, "vocab": 512, "batch": 1, "seq": 32, "steps": 1, "warmup": 1}
FULL = {
    "rounds": 5,
    "cap_mib": 192,
    "searched": SEARCHED,
    "prefetch": {**SMALL, "layers": 24, "vocab": 1024},
    "checkpointing": {**SMALL, "layers": 8, "vocab": 1024, "seq": 256},
    "deep": DEEP,
    "stateful": {**DEEP, "layers": 24},
}
QUICK = {
    "rounds": 2,
    "cap_mib": 64,
    "searched": {**SEARCHED, "layers": 16, "seq": 16},
    "prefetch": {**SMALL, "dim": 128, "layers": 24, "vocab": 256, "seq": 64, "steps": 4},
    "checkpointing": {**SMALL, "layers": 4, "vocab": 256, "seq": 256, "steps": 3},
    "deep": {**DEEP, "dim": 128, "vocab": 256, "seq": 16},
    "stateful": {**DEEP, "dim": 192, "layers": 24, "vocab": 256, "seq": 16},
}
LARGE = {"dim": 2048, "layers": 16, "heads": 16, "vocab": 32000, "batch": 8, "seq": 1024}
ON_CUDA = {
    "cap_mib": 4096,
    "searched": {**SEARCHED, "seq": 256},
    "prefetch": {**SMALL, **LARGE},
    "checkpointing": {**SMALL, **LARGE},
}


class Runs:
    """Runs claims_bench in the sizes of this benchmark, and keeps its lines."""

    def __init__(self, options, emit):
        self.program = programs.our_program(options.bin, "claims_bench")
        self.device, self.emit = options.device, emit
        self.sizes = dict(QUICK if options.quick else FULL)
        if self.device == "cuda":
            self.sizes |= ON_CUDA
        self.rounds = options.rounds or self.sizes["rounds"]
        self.cap = (options.cap_mib or self.sizes["cap_mib"]) * MIB
        self.most_ranks = self.gpus() if self.device == "cuda" else math.inf
        # Models that are timed compute in bf16 on GPUs.
        self.timed = ["--bf16"] if self.device == "cuda" else []

    def gpus(self):
        found = programs.run("claims_bench", [self.program, "devices"])[0]["cuda"]
        if found == 0:
            raise BenchError("no GPU is visible: run without --device cuda")
        return found

    def possible(self, *counts):
        """Those numbers of ranks that this machine can have."""
        return [ranks for ranks in counts if ranks <= self.most_ranks]

    def run(self, name, *words, **sizes):
        sized = [word for key, value in sizes.items() for word in (f"--{key}", value)]
        say(f"bench/run claims: {name} --ranks {sizes['ranks']} {' '.join(map(str, words))}")
        lines = programs.run("claims_bench", [self.program, name, "--device", self.device, *words, *sized], timeout=600)
        if len(lines) != 1:
            raise BenchError(f"claims_bench {name} printed {len(lines)} lines where one was due")
        self.emit(lines[0])
        return lines[0]

    def train(self, *words, **sizes):
        return self.run("train", *words, **sizes)

    def measure_memory(self, *words, **sizes):
        return self.train("--memory", *words, **sizes | {"steps": 1, "warmup": 1})

    def take_turns(self, variants, **sizes):
        """Variant -> the time of a step, and the most bytes in one. Memory is a run of its own. The time is that of
        the least disturbed round: the lowest of the rounds' medians."""
        times = {name: [] for name in variants}
        for _ in range(self.rounds):
            for name, words in variants.items():
                times[name].append(statistics.median(self.train(*self.timed, *words, **sizes)["times_ms"]))
        bytes_of = lambda words: self.measure_memory(*self.timed, *words, **sizes)["allocated_peak_bytes"]
        return {name: (min(times[name]), bytes_of(words)) for name, words in variants.items()}


class Search:
    """The largest Llama whose ranks stay under the cap, by plan and by run."""

    def __init__(self, runs, strategy, ranks):
        self.runs, self.strategy, self.ranks = runs, strategy, ranks
        self.shape = runs.sizes["searched"]

    def layer(self, dim):
        return 4 * dim * dim + 3 * dim * (3 * dim) + 2 * dim

    def params(self, dim):
        return self.shape["layers"] * self.layer(dim) + 2 * self.shape["vocab"] * dim + dim

    def planned_bytes(self, dim):
        """State, and with full_shard the gradient buffers: those of two decoder layers and of the head."""
        whole = STATE_VALUES * FLOAT * self.params(dim)
        if self.strategy == "no_shard":
            return whole
        return whole / self.ranks + FLOAT * (2 * self.layer(dim) + self.shape["vocab"] * dim)

    def widest(self, small_enough):
        dim = 0
        while small_enough(dim + DIM_STEP):
            dim += DIM_STEP
        return dim

    def planned(self):
        """The largest width by the formula, which leaves out activations."""
        return max(DIM_STEP, self.widest(lambda dim: self.planned_bytes(dim) <= self.runs.cap))

    def peak(self, dim):
        words = ["--strategy", self.strategy, "--dim", dim, "--inner", 3 * dim]
        line = self.runs.measure_memory(*words, ranks=self.ranks, **self.shape)
        if line["params"] != self.params(dim):
            raise BenchError(f"a model of width {dim} has {line['params']} parameters, not {self.params(dim)}")
        return max(line["setup_peak_bytes"], line["resident_peak_bytes"])

    def measured(self):
        """The largest width that fits, while the next does not. Guesses from the memory per parameter so far."""
        fits, too_wide, dim = 0, None, self.planned()
        while too_wide is None or too_wide - fits > DIM_STEP:
            peak = self.peak(dim)
            if peak <= self.runs.cap:
                fits = dim
            else:
                too_wide = dim
            guess = self.params(dim) * self.runs.cap / peak
            dim = max(self.widest(lambda wider: self.params(wider) <= guess), fits + DIM_STEP)
            if too_wide is not None:
                dim = min(dim, too_wide - DIM_STEP)
        if fits == 0:
            raise BenchError(f"no model fits into {self.runs.cap // MIB} MiB per rank: raise --cap-mib")
        return fits
