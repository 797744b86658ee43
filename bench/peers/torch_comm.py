"""Times PyTorch's collectives (gloo or NCCL) the way comm_bench times ours, and prints the same JSON lines.

Usage: torch_comm.py --backend gloo --ranks 4 --sizes 4096,65536 --ops all_gather [--seconds-per-point 0.3]

One round, the same in comm_bench, mpi_comm.cpp and here: write new values to the private source, barrier,
t0, the blocking collective, t1, check. See Note [Timed region] and Note [Data] in mpi_comm.cpp. On a GPU the
device is waited for before t0 and before t1. On a CPU each rank computes with one thread.
"""

import argparse
import json
import os
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARMUPS = 5
MIN_ROUNDS = 7
MAX_ROUNDS = 2000
PERIOD = 251
OPS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")


class Group:
    """This process's place among the ranks and the device its tensors live on."""

    def __init__(self, backend, rank, size):
        self.rank, self.size = rank, size
        self.cuda = backend == "nccl"
        self.impl = "torch_nccl" if self.cuda else "gloo"
        self.device = torch.device("cpu")
        if self.cuda:
            self.device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def barrier(self):
        dist.barrier(device_ids=[self.device.index] if self.cuda else None)
        self.synchronize()


class Case:
    """One (op, bytes) pair: its buffers, its call and its closed form."""

    IN_PLACE = ("all_reduce", "broadcast")

    def __init__(self, op, nbytes, group):
        if nbytes % (4 * group.size):
            raise ValueError("bytes must be a multiple of 4 * ranks")
        self.op, self.nbytes, self.group = op, nbytes, group
        full = nbytes // 4
        self.part = full // group.size
        every, own = (0, full), (group.rank * self.part, (group.rank + 1) * self.part)
        source = own if op == "all_gather" else every
        self.begin, self.end = own if op == "reduce_scatter" else every
        self.base = (torch.arange(*source, device=group.device) % PERIOD).float()
        self.source = torch.empty_like(self.base)
        self.result = self.source
        if op not in self.IN_PLACE:
            self.result = torch.zeros(self.end - self.begin, device=group.device)
        step = max(1, (self.end - self.begin) // 8)
        self.some = torch.arange(self.begin, self.end, step, device=group.device)

    def write_source(self, k):
        torch.add(self.base, self.group.rank + 8 * (k % 5), out=self.source)

    def call(self):
        if self.op == "all_gather":
            dist.all_gather_into_tensor(self.result, self.source)
        elif self.op == "reduce_scatter":
            dist.reduce_scatter_tensor(self.result, self.source)
        elif self.op == "all_reduce":
            dist.all_reduce(self.source)
        else:
            dist.broadcast(self.source, 0)

    def expected(self, j, k):
        """The values at the positions `j` of the full buffer in round `k`."""
        value, size = j % PERIOD + 8 * (k % 5), self.group.size
        if self.op == "all_gather":
            return value + j // self.part
        if self.op == "broadcast":
            return value
        return size * value + size * (size - 1) // 2

    def check(self, k, everything):
        j = torch.arange(self.begin, self.end, device=self.group.device) if everything else self.some
        if not torch.equal(self.result[j - self.begin], self.expected(j, k).float()):
            where = f"{self.op} of {self.nbytes} bytes, rank {self.group.rank}"
            raise AssertionError(f"wrong result: {where}")


def run_round(case, k, check_all=False):
    """Runs one round and returns this rank's t1 - t0 in microseconds."""
    case.write_source(k)
    case.group.barrier()
    start = time.perf_counter_ns()
    case.call()
    case.group.synchronize()
    elapsed = time.perf_counter_ns() - start
    case.check(k, check_all)
    return elapsed / 1e3


def choose_rounds(case, seconds):
    fastest = float("inf")
    for k in range(WARMUPS):
        start = time.perf_counter()
        run_round(case, k)
        fastest = min(fastest, time.perf_counter() - start)
    rounds = int(min(max(seconds / fastest, MIN_ROUNDS), MAX_ROUNDS))
    count = torch.tensor([rounds], device=case.group.device)
    dist.broadcast(count, 0)
    return int(count)


def print_point(case, samples):
    us = samples.quantile(0.5).item()
    point = {
        "bench": "comm",
        "impl": case.group.impl,
        "op": case.op,
        "ranks": case.group.size,
        "bytes": case.nbytes,
        "us": round(us, 3),
        "p90_us": round(samples.quantile(0.9).item(), 3),
        "gbps": round(case.nbytes / us / 1e3, 4),
        "rounds": len(samples),
        "version": f"torch {torch.__version__}",
    }
    print(json.dumps(point, separators=(",", ":")), flush=True)


def run_case(case, seconds):
    rounds = choose_rounds(case, seconds)
    samples = [run_round(case, k, check_all=k == rounds - 1) for k in range(rounds)]
    slowest = torch.tensor(samples, dtype=torch.float64, device=case.group.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if case.group.rank == 0:
        print_point(case, slowest)


def run_rank(rank, options, init):
    torch.set_num_threads(1)
    if options.backend == "nccl" and options.ranks > torch.cuda.device_count():
        os.environ["NCCL_HOSTID"] = f"host{rank}"  # NCCL refuses two ranks of one host on one GPU
    group = Group(options.backend, rank, options.ranks)
    dist.init_process_group(options.backend, init_method=init, rank=rank, world_size=options.ranks)
    for op in options.ops:
        for nbytes in options.sizes:
            run_case(Case(op, nbytes, group), options.seconds_per_point)
    dist.destroy_process_group()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--launched", action="store_true", help="this process is one rank of a launcher")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True)
    parser.add_argument("--ops", type=lambda text: text.split(","), required=True)
    parser.add_argument("--seconds-per-point", type=float, default=0.3)
    options = parser.parse_args()
    unknown = set(options.ops) - set(OPS)
    if unknown:
        parser.error(f"unknown op {', '.join(sorted(unknown))}")
    return options


def main():
    options = parse()
    if options.launched:
        return run_rank(int(os.environ["RANK"]), options, "env://")
    with tempfile.TemporaryDirectory() as folder:
        init = f"file://{folder}/store"
        mp.start_processes(run_rank, (options, init), nprocs=options.ranks, start_method="fork")


if __name__ == "__main__":
    main()
