"""Checkpoints: save and load against torch.distributed.checkpoint, torch.save, safetensors and a plain file."""

import contextlib
import os
import pathlib
import random
import shutil
import statistics
import tempfile

from . import output, programs
from .output import rounded
from .programs import BenchError, say

OURS = "fsdp"
PEERS = ("dcp", "torch_save", "safetensors")
PLAIN = "plain"
BEFORE = "before"  # ours, as of an earlier commit
OPS = ("save", "load")
TMPFS = pathlib.Path("/dev/shm")
ROUNDS = 5
MOST_PLAIN_CPU = 2  # of a plain write to disk over one to tmpfs: more, and it was held up by memory, not the disk

DIM, VOCAB = 768, 8192
LAYER_PARAMS = 4 * DIM * DIM + 3 * DIM * 2048 + 2 * DIM
OTHER_PARAMS = 2 * VOCAB * DIM + DIM
PARAM_BYTES = 12  # fp32, with two moments

# name in the summary -> is the goal reached?
GOALS = {
    "save_vs_dcp_tmpfs": lambda ratio: ratio >= 1.5,
    "save_vs_dcp_disk": lambda ratio: ratio >= 1,
    "load_vs_dcp_tmpfs": lambda ratio: ratio >= 1.5,
    "load_vs_dcp_disk": lambda ratio: ratio >= 1,
    "save_vs_plain_write": lambda ratio: ratio >= 0.9,
    "async_stall_vs_sync": lambda ratio: ratio <= 0.05,
    "hash_gbps": lambda speed: speed >= 2,
}


def add_options(parser):
    parser.add_argument("--bytes", type=int, default=10**9, help="of parameters and moments, about")
    parser.add_argument("--ranks", type=int, default=2, help="of ours and of DCP")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each program saves and loads")
    parser.add_argument("--places", type=lambda text: text.split(","), default=["tmpfs", "disk"])
    parser.add_argument("--dir", type=pathlib.Path, default=programs.ROOT / "build", help="a folder on a disk")
    parser.add_argument("--before", metavar="COMMIT", help="ours as of this commit too, built first")
    output.add_options(parser, "checkpoint_bench")


def file_system(folder):
    """The type of the file system that a folder is on."""
    mounts = [line.split()[1:3] for line in open("/proc/mounts")]
    above = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above)[1]


@contextlib.contextmanager
def folder_at(place, options):
    """A new folder on tmpfs or on a disk, while it lasts."""
    parent = TMPFS if place == "tmpfs" else options.dir
    parent.mkdir(parents=True, exist_ok=True)
    if (kind := file_system(parent)) in ("tmpfs", "ramfs") and place == "disk":
        raise BenchError(f"{parent} is on {kind}: pass --dir with a folder on a disk")
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=parent) as folder:
        yield pathlib.Path(folder)


def commands(options):
    """The programs, which take turns in another order in each round."""
    ours = programs.our_program(options.bin, "checkpoint_bench")
    found = {OURS: [ours, "--ranks", options.ranks]}
    if options.before:
        found[BEFORE] = [programs.build_commit(options.before, "checkpoint_bench"), "--ranks", options.ranks]
    if not options.no_peers:
        peer = [programs.peers_python(options.python), programs.PEERS / "torch_checkpoint.py"]
        for mode in PEERS:
            found[mode] = [*peer, "--mode", mode, "--ranks", options.ranks]
    found[PLAIN] = [ours, "--plain"]
    layers = max(1, round((options.bytes / PARAM_BYTES - OTHER_PARAMS) / LAYER_PARAMS))
    shape = ["--dim", DIM, "--layers", layers, "--vocab", VOCAB, "--rounds", options.rounds + 1]
    return {impl: command + shape for impl, command in found.items()}


def files_in(path):
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def is_cached(fd, offset):
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def evict(path, probes=64):
    """Asks the kernel to forget the pages of the files at `path`. The fraction of them that it still has."""
    found = []
    for file in files_in(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(fd).st_size
            found += [(size, is_cached(fd, size * i // probes)) for i in range(probes) if size]
        finally:
            os.close(fd)
    return sum(size for size, cached in found if cached) / sum(size for size, _ in found)


def forget(path):
    """Deletes a checkpoint, and leaves the disk nothing to do for it."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()


def warm_memory(size):
    """Leaves the kernel this much memory that was just in use. What was free for a while can be slow to get: a
    hypervisor takes it back."""
    touched = bytearray(b"\1") * size
    del touched


class Times:
    """Seconds of all rounds by (place, impl, op)."""

    def __init__(self):
        self.lines = {}

    def add(self, line):
        self.lines.setdefault((line["place"], line["impl"], line["op"]), []).append(line)

    def all(self, place, impl, op, field="seconds"):
        return [line[field] for line in self.lines.get((place, impl, op), [])]

    def median(self, place, impl, op, field="seconds"):
        values = self.all(place, impl, op, field)
        return statistics.median(values) if values else None

    def speedup(self, place, other, op):
        """How many times as fast as `other` ours is, by medians; None where one was not measured."""
        ours, theirs = self.median(place, OURS, op), self.median(place, other, op)
        return theirs / ours if ours and theirs else None

    def spread(self, place, other, op):
        """The lowest and the highest speed-up of a round."""
        pairs = zip(self.all(place, OURS, op), self.all(place, other, op))
        found = [theirs / ours for ours, theirs in pairs]
        return (min(found), max(found)) if found else None


def one_round(program, path, place, number, size, emit, times):
    for op in OPS:
        cached = None if op == "save" else evict(path) if place == "disk" else 1.0
        program.turn()  # prepares
        warm_memory(size * 5 // 4)
        line = program.turn() | {"place": place, "round": number, "cached": rounded(cached)}
        printed = OURS if program.name == BEFORE else program.name
        if (line["impl"], line["op"]) != (printed, op):
            raise BenchError(f"{program.name} did a {line['op']} where a {op} was due")
        line["impl"] = program.name
        if number == 0:
            continue  # warm-up
        emit(line)
        times.add(line)
    forget(path)


def measure(options, emit):
    """At each place all programs are started first. Then they take turns, one operation at a time."""
    times = Times()
    for place in options.places:
        with folder_at(place, options) as folder, contextlib.ExitStack() as stack:
            started = []
            for impl, command in commands(options).items():
                say(f"bench/run checkpoint: {place}: starting {impl}")
                (folder / impl).mkdir()
                program = programs.Turns(impl, [*command, "--folder", folder / impl])
                started.append(stack.enter_context(program))
            for number in range(options.rounds + 1):
                say(f"bench/run checkpoint: {place}, round {number} of {options.rounds}")
                # The program that ran before decides how fast the kernel finds memory for the next one.
                for program in random.Random(number).sample(started, len(started)):
                    path = folder / program.name / str(number)
                    one_round(program, path, place, number, options.bytes, emit, times)
            for program in started:
                program.end()
    return times


def hash_speed(options, emit):
    line = programs.run("hash", [programs.our_program(options.bin, "hash_bench")])[0]
    emit(line)
    return line["gbps"]


def stalls(options, emit):
    """What a save in the background costs the training, with our optimizer, over a save at once; on a disk."""
    bench = [programs.our_program(options.bin, "stall_bench"), "--ranks", options.ranks, "--rounds", options.rounds]
    found = []
    for flags in ([], ["--stock"]):
        with folder_at("disk", options) as folder:
            say(f"bench/run checkpoint: saving while training, {' '.join(flags) or 'our optimizer'}")
            line = programs.run("stall", [*bench, "--folder", folder, *flags])[0]
        emit(line)
        if not line["bits_equal"]:
            raise BenchError("what was saved in the background is not what the model held")
        found.append(line["async_stall_vs_sync"])
    return found[0]


def vs_plain_write(times):
    """None where the plain write was disturbed: a ratio to it would flatter us."""
    disk, tmpfs = (times.median(place, PLAIN, "save", "cpu_seconds") for place in ("disk", "tmpfs"))
    if not disk or not tmpfs:
        return None
    if disk > MOST_PLAIN_CPU * tmpfs:
        say(f"bench/run checkpoint: the plain write took {disk:.2f} s of CPU on disk, {tmpfs:.2f} s on tmpfs: no yardstick")
        return None
    return times.speedup("disk", PLAIN, "save")


def summarize(options, times, hash_gbps, stall):
    ratios = {
        f"{op}_vs_dcp_{place}": times.speedup(place, "dcp", op) for place in ("tmpfs", "disk") for op in OPS
    }
    for place in options.places if options.before else ():
        ratios |= {f"{op}_vs_before_{place}": times.speedup(place, BEFORE, op) for op in OPS}
    ratios["save_vs_plain_write"] = vs_plain_write(times)
    ratios["hash_gbps"] = hash_gbps
    ratios["async_stall_vs_sync"] = stall
    missed = [name for name, reached in GOALS.items() if ratios[name] is None or not reached(ratios[name])]
    return {"bench": "checkpoint"} | {name: rounded(ratio) for name, ratio in ratios.items()}, missed


def ratio_cells(times, place, impl, op):
    if impl == OURS or (ratio := times.speedup(place, impl, op)) is None:
        return ["-", "-"]
    low, high = times.spread(place, impl, op)
    return [f"{ratio:.2f}x", f"{low:.2f} to {high:.2f}"]


def table(times, options):
    rows = [["place", "op", "impl", "ranks", "speed", "slowest", "fastest", "cpu", "cached", "ours", "in rounds"]]
    for place in options.places:
        for op in OPS:
            for impl in (OURS, BEFORE, *PEERS, PLAIN):
                speeds = times.all(place, impl, op, "gbps")
                if not speeds:
                    continue
                cached = times.median(place, impl, op, "cached") if op == "load" else None
                row = [place, op, impl, str(times.all(place, impl, op, "ranks")[0])]
                row += [f"{statistics.median(speeds):.2f} GB/s", f"{min(speeds):.2f}", f"{max(speeds):.2f}"]
                row += [f"{times.median(place, impl, op, 'cpu_seconds'):.2f} s"]
                row += ["-" if cached is None else f"{cached:.0%}"]
                rows.append(row + ratio_cells(times, place, impl, op))
    return output.aligned(rows)


def run(options):
    with output.json_lines(options.out, "checkpoint") as emit:
        hash_gbps = hash_speed(options, emit)
        stall = stalls(options, emit)
        times = measure(options, emit)
        print("\n" + table(times, options) + "\n")
        summary, missed = summarize(options, times, hash_gbps, stall)
        for name in missed:
            say(f"bench/run checkpoint: {name} is {summary[name]}")
        emit(summary | {"ok": not missed})
