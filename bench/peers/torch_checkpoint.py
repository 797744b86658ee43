"""Saves and loads a Llama with its AdamW moments in PyTorch the way checkpoint_bench does with ours.

Usage: torch_checkpoint.py --mode dcp --folder DIR --rounds 5 --ranks 2 [--dim 768 --layers 10 --vocab 8192]

dcp: FSDP2 and torch.distributed.checkpoint over gloo. torch_save, safetensors: one process, not sharded. Lines
on stdin make it prepare and do the next operation. What is timed: bench/README.md.
"""

import argparse
import datetime
import json
import os
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from torch_llama import Llama

SEQ = 8
SAMPLE_STRIDE = 997
TURN = datetime.timedelta(minutes=30)  # others take theirs


def closed_form(numel, stride, number):
    """The value of element i of a tensor in a round: whole numbers that change from round to round."""
    return torch.arange(0, numel, stride).remainder(65521).add_(65536 * number).float()


class Run:
    """A model and its optimizer, with moments."""

    def __init__(self, options):
        self.model = Llama(options.dim, options.layers, options.vocab)
        self.bytes = sum(parameter.numel() for parameter in self.model.parameters()) * 3 * 4
        self.shard(options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.model(torch.zeros(1, SEQ, dtype=torch.int64)).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def shard(self, options):
        pass

    def barrier(self):
        pass

    def from_ranks(self, number):
        return [number]

    def tensors(self):
        """What this process holds of parameters and moments, flat."""
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            for tensor in (parameter.detach(), state["exp_avg"], state["exp_avg_sq"]):
                yield (tensor.to_local() if isinstance(tensor, DTensor) else tensor).view(-1)

    def fill(self, number):
        for tensor in self.tensors():
            tensor.copy_(closed_form(tensor.numel(), 1, number))

    def spoil(self):
        for tensor in self.tensors():
            tensor.fill_(-1)

    def check(self, number, everything):
        stride = 1 if everything else SAMPLE_STRIDE
        for tensor in self.tensors():
            if not torch.equal(tensor[::stride], closed_form(tensor.numel(), stride, number)):
                raise RuntimeError(f"a loaded tensor does not have the values of round {number}")


class Dcp(Run):
    """State dicts are made before the clock runs; dcp.load() loads in place, so nothing is set afterwards."""

    def shard(self, options):
        self.ranks = options.ranks
        mesh = init_device_mesh("cpu", (options.ranks,))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def barrier(self):
        dist.barrier()

    def from_ranks(self, number):
        numbers = [None] * self.ranks
        dist.all_gather_object(numbers, number)
        return numbers

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, path, state):
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))

    def load(self, path, state):
        dcp.load(state, storage_reader=dcp.FileSystemReader(path))


class OneFile(Run):
    """The whole state in one process. A load ends with the values in the run's own tensors."""

    ranks = 1

    def state(self):
        names = [name for name, _ in self.model.named_parameters()]
        keys = [f"{kind}.{name}" for name in names for kind in ("model", "exp_avg", "exp_avg_sq")]
        shapes = [parameter.shape for parameter in self.model.parameters() for _ in range(3)]
        return {key: flat.view(shape) for key, flat, shape in zip(keys, self.tensors(), shapes)}

    @staticmethod
    def sync(path):
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    @staticmethod
    def take(state, loaded):
        for name, tensor in state.items():
            tensor.copy_(loaded[name])


class TorchSave(OneFile):
    def save(self, path, state):
        torch.save(state, path)
        self.sync(path)

    def load(self, path, state):
        self.take(state, torch.load(path, weights_only=True))


class Safetensors(OneFile):
    def save(self, path, state):
        safetensors.torch.save_file(state, path)
        self.sync(path)

    def load(self, path, state):
        self.take(state, safetensors.torch.load_file(path))


RUNS = {"dcp": Dcp, "torch_save": TorchSave, "safetensors": Safetensors}


def await_turn(rank, stdin):
    if rank == 0 and not stdin.readline():
        raise RuntimeError("stdin has ended")


def get_ready(run, rank, stdin, prepare):
    """The first line makes it prepare, the second is the sign to begin. Meanwhile nobody else works."""
    await_turn(rank, stdin)
    prepare()
    run.barrier()
    if rank == 0:
        print('{"ready":true}', flush=True)
    await_turn(rank, stdin)


def timed(run, work):
    """Seconds of work(state): the slowest rank's, and of all ranks' processors."""
    state = run.state()
    run.barrier()
    start, cpu_start = time.perf_counter(), time.process_time()
    work(state)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    return max(run.from_ranks(wall)), sum(run.from_ranks(cpu))


def print_line(run, mode, op, seconds, cpu_seconds):
    line = {
        "bench": "checkpoint",
        "impl": mode,
        "op": op,
        "ranks": run.ranks,
        "bytes": run.bytes,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "gbps": run.bytes / seconds / 1e9,
        "version": f"torch {torch.__version__}, safetensors {safetensors.__version__}",
    }
    print(json.dumps(line, separators=(",", ":")), flush=True)


@torch.no_grad()
def take_turns(run, rank, options):
    stdin = os.fdopen(0, closefd=False)
    if rank == 0:
        print('{"ready":true}', flush=True)
    for number in range(options.rounds):
        path = os.path.join(options.folder, str(number))
        get_ready(run, rank, stdin, lambda: run.fill(number))
        times = timed(run, lambda state: run.save(path, state))
        if rank == 0:
            print_line(run, options.mode, "save", *times)
        get_ready(run, rank, stdin, run.spoil)
        times = timed(run, lambda state: run.load(path, state))
        run.check(number, number + 1 == options.rounds)
        run.barrier()
        if rank == 0:
            print_line(run, options.mode, "load", *times)


def run_rank(rank, options, store):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, options.ranks), rank=rank, world_size=options.ranks, timeout=TURN
    )
    take_turns(Dcp(options), rank, options)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=RUNS, default="dcp")
    parser.add_argument("--folder", required=True)
    for name, value in {"rounds": 1, "ranks": 2, "dim": 768, "layers": 10, "vocab": 8192}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.mode != "dcp":
        torch.set_num_threads(1)
        return take_turns(RUNS[options.mode](options), 0, options)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.start_processes(run_rank, (options, store), nprocs=options.ranks, start_method="spawn")


if __name__ == "__main__":
    main()
