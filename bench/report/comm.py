"""Collectives: ours against gloo (PyTorch), OpenMPI and memcpy; or our NCCL backend against PyTorch's."""

import itertools

from . import output, programs
from .output import numbers, rounded
from .programs import BenchError, say

KI, MI = 1 << 10, 1 << 20
SIZES = (4 * KI, 64 * KI, MI, 4 * MI, 16 * MI, 64 * MI)
QUICK_SIZES = (4 * KI, MI, 16 * MI)
OPS = ("all_gather", "reduce_scatter", "all_reduce")
LARGE = 16 * MI  # bandwidth is judged from here on
SMALL = 4 * KI  # latency is judged here

# name in the summary -> is the goal reached?
GOALS = {
    "all_gather_vs_gloo": lambda ratio: ratio >= 6,
    "reduce_scatter_vs_gloo": lambda ratio: ratio >= 3,
    "latency_4k_vs_gloo": lambda ratio: ratio <= 0.3,
    "all_gather_vs_memcpy": lambda ratio: ratio > 1,
}


def add_options(parser):
    parser.add_argument("--backend", choices=("shm", "nccl"), default="shm")
    parser.add_argument("--hosts", type=int, help="CPU ranks on so many hosts (network namespaces; needs root)")
    parser.add_argument("--ranks", type=numbers, help="group sizes, by default 2,4 (nccl: 1,2,4)")
    parser.add_argument("--min-bytes", type=int, default=SIZES[0])
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--quick", action="store_true", help="one short pass over three sizes")
    output.add_options(parser, "comm_bench")


class Program:
    """A command line without its workload; it must print one line per op and size."""

    def __init__(self, impl, command, ops=OPS):
        self.impl, self.command, self.ops = impl, command, ops

    def run(self, sizes, seconds):
        work = ["--sizes", ",".join(map(str, sizes)), "--ops", ",".join(self.ops)]
        lines = programs.run(self.impl, self.command + work + ["--seconds-per-point", seconds])
        wanted = {(self.impl, op, size) for op in self.ops for size in sizes}
        missing = wanted - {(line["impl"], line["op"], line["bytes"]) for line in lines}
        if missing:
            raise BenchError(f"{self.impl} printed no line for {sorted(missing)}")
        return lines


def program_plan(options, ranks):
    """The programs of one group size, in the order in which each pass runs them."""
    ours = programs.our_program(options.bin, "comm_bench")
    plan = [Program(options.backend, [ours, "--backend", options.backend, "--ranks", ranks])]
    if not options.no_peers:
        backend = "gloo" if options.backend == "shm" else "nccl"
        torch = [programs.peers_python(options.python), programs.PEERS / "torch_comm.py", "--backend", backend]
        plan.append(Program(peer_of(options.backend), torch + ["--ranks", ranks]))
    if options.backend == "shm":
        if not options.no_peers:
            plan.append(Program("openmpi", programs.mpirun(ranks) + [programs.mpi_program("mpi_comm")]))
        plan.append(Program("memcpy", [ours, "--backend", "memcpy"], ops=("memcpy",)))
    return plan


def peer_of(backend):
    """Whom the summary judges us against."""
    return {"shm": "gloo", "nccl": "torch_nccl"}[backend]


class Points:
    """The fastest pass of every (impl, op, ranks, bytes)."""

    def __init__(self):
        self.best = {}

    def add(self, line):
        key = self.key(line["impl"], line["op"], line["ranks"], line["bytes"])
        self.best[key] = min(line["us"], self.best.get(key, line["us"]))

    @staticmethod
    def key(impl, op, ranks, size):
        return (impl, "memcpy", 1, size) if impl == "memcpy" else (impl, op, ranks, size)

    def us(self, impl, op, ranks, size):
        """Microseconds, or None where nothing was measured. memcpy has one time per size."""
        return self.best.get(self.key(impl, op, ranks, size))

    def speedup(self, ours, other, op, ranks, size):
        """How many times as fast as `other` ours is, or None."""
        mine, theirs = self.us(ours, op, ranks, size), self.us(other, op, ranks, size)
        return theirs / mine if mine and theirs else None


def measure(plans, sizes, quick, emit):
    """Runs the programs of each plan in turn, several times over."""
    passes, seconds = (1, 0.05) if quick else (3, 0.3)
    points = Points()
    for ranks, plan in plans.items():
        for number in range(1, passes + 1):
            for program in plan:
                say(f"bench/run comm: {ranks} ranks, pass {number} of {passes}: {program.impl}")
                for line in program.run(sizes, seconds):
                    emit(line | {"pass": number})
                    points.add(line)
    return points


def worst(points, ours, other, ops, ranks_list, sizes):
    """The lowest speed-up over ops, group sizes and sizes, or None where nothing was measured."""
    cases = itertools.product(ops, ranks_list, sizes)
    found = [points.speedup(ours, other, *case) for case in cases]
    return min((ratio for ratio in found if ratio is not None), default=None)


def summarize(points, backend, ranks_list, sizes):
    peer = peer_of(backend)
    large = [size for size in sizes if size >= LARGE]
    at_4k = worst(points, backend, peer, OPS[:2], ranks_list, [SMALL])
    ratios = {f"{op}_vs_{peer}": worst(points, backend, peer, [op], ranks_list, large) for op in OPS[:2]}
    ratios[f"latency_4k_vs_{peer}"] = 1 / at_4k if at_4k else None
    if backend == "shm":
        ratios["all_gather_vs_memcpy"] = worst(points, backend, "memcpy", ["all_gather"], ranks_list, large)
    goals = GOALS if backend == "shm" else {}
    ok = all(ratios[name] is not None and reached(ratios[name]) for name, reached in goals.items())
    head = {"bench": "comm"} if backend == "shm" else {"bench": "comm", "backend": backend}
    return head | {name: rounded(ratio) for name, ratio in ratios.items()} | {"ok": ok}


def size_text(size):
    return f"{size // MI} MiB" if size >= MI else f"{size // KI} KiB"


def cell(us, size):
    """Bandwidth, or time where latency is what counts."""
    if us is None:
        return "-"
    return f"{us:.1f} us" if size < MI else f"{size / us / 1e3:.2f} GB/s"


def ratio_cell(ratio):
    return "-" if ratio is None else f"{ratio:.2f}x"


def table(points, backend, ranks_list, sizes):
    others = ["gloo", "openmpi", "memcpy"] if backend == "shm" else ["torch_nccl"]
    rows = [["op", "size", "ranks", backend, *others, *(f"vs {other}" for other in others)]]
    for op in OPS:
        for size in sizes:
            for ranks in ranks_list:
                times = [cell(points.us(impl, op, ranks, size), size) for impl in [backend, *others]]
                ratios = [ratio_cell(points.speedup(backend, other, op, ranks, size)) for other in others]
                rows.append([op, size_text(size), str(ranks), *times, *ratios])
    return output.aligned(rows)


def chosen_sizes(options, ranks_list):
    offered = QUICK_SIZES if options.quick else SIZES
    sizes = [size for size in offered if options.min_bytes <= size <= options.max_bytes]
    if not sizes:
        raise BenchError(f"--min-bytes and --max-bytes leave none of {', '.join(map(str, offered))}")
    uneven = [ranks for ranks in ranks_list if ranks < 1 or any(size % (4 * ranks) for size in sizes)]
    if uneven:
        raise BenchError(f"{uneven[0]} ranks cannot share buffers of {', '.join(map(str, sizes))} bytes evenly")
    return sizes


def run(options):
    if options.hosts:
        from . import comm_hosts

        return comm_hosts.run(options)
    ranks_list = options.ranks or ([2, 4] if options.backend == "shm" else [1, 2, 4])
    sizes = chosen_sizes(options, ranks_list)
    plans = {ranks: program_plan(options, ranks) for ranks in ranks_list}
    with output.json_lines(options.out, f"comm-{options.backend}") as emit:
        points = measure(plans, sizes, options.quick, emit)
        print("\n" + table(points, options.backend, ranks_list, sizes) + "\n")
        emit(summarize(points, options.backend, ranks_list, sizes))
