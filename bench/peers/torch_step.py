"""Times training steps of a Llama in PyTorch (FSDP2, DDP or plain) the way step_bench times ours.

Usage: torch_step.py --mode fsdp2 --ranks 4 --data DIR [--dim 256 --layers 6 ...]
       torch_step.py --write DIR --ranks 4    writes start weights and tokens for both programs, and ends

On a CPU each rank computes with one thread. What is measured: bench/README.md.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

if "--offload" not in sys.argv:  # there the optimizer runs on the host
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_llama import Llama

LEARNING_RATE = 1e-4


def draw_tokens(options, rank):
    """[batch, seq + 1]"""
    generator = torch.Generator().manual_seed(1234 + rank)
    return torch.randint(0, options.vocab, (options.batch, options.seq + 1), generator=generator)


def make_model(options, device):
    torch.manual_seed(0)
    with device:
        return Llama(options.dim, options.layers, options.vocab)


def mapped(path, like, write=False):
    """The values of a raw file, as many and of such a type and shape as `like` has."""
    return torch.from_file(str(path), shared=write, size=like.numel(), dtype=like.dtype).view(like.shape)


def write_data(folder, options):
    """One raw file per parameter, under its name, and tokens.RANK [batch, seq + 1] in int64."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(make_model(options, torch.device("cpu")).named_parameters())
    tensors |= {f"tokens.{rank}": draw_tokens(options, rank) for rank in range(options.ranks)}
    for name, tensor in tensors.items():
        mapped(folder / name, tensor, write=True).copy_(tensor.detach())


@torch.no_grad()
def load_weights(model, folder):
    for name, parameter in model.named_parameters():
        parameter.copy_(mapped(folder / name, parameter))


def load_tokens(options, rank):
    if options.data is None:
        return draw_tokens(options, rank)
    shape = torch.empty(options.batch, options.seq + 1, dtype=torch.int64)
    return mapped(options.data / f"tokens.{rank}", shape).clone()


def distribute(model, options, device):
    if options.mode == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if options.recompute:
        layer = type(model.model.layers[0])
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, layer))
    if options.compile:
        for layer in model.model.layers:
            layer.compile()
    if options.mode == "fsdp2":
        settings = {"mesh": init_device_mesh(device.type, (options.ranks,))}
        if options.bf16:
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if options.offload:
            settings["offload_policy"] = CPUOffloadPolicy()
        for layer in model.model.layers:
            fully_shard(layer, **settings)
        fully_shard(model, **settings)
    return model


def pss_kib():
    """This process's share of the memory it has mapped."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


class Training:
    def __init__(self, model, tokens):
        self.model = model
        self.ids, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, look=lambda: None):
        """One step; `look` is called where most memory is in use."""
        loss = F.cross_entropy(self.model(self.ids).flatten(0, 1).float(), self.targets.flatten())
        look()
        loss.backward()
        look()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def timed_step(self, synchronize):
        start = time.perf_counter()
        loss = self.step()
        synchronize()
        return loss, (time.perf_counter() - start) * 1e3


def measure(training, options, cuda, pss_before):
    """This rank's figures: times and losses of all steps, and memory."""
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    losses, times = [], []
    for number in range(options.warmup + options.steps):
        if cuda and number == options.warmup:
            torch.cuda.reset_peak_memory_stats()
        loss, elapsed = training.timed_step(synchronize)
        losses.append(loss)
        times.append(elapsed)
    growth, seen = pss_kib() - pss_before, []
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    training.step(look=lambda: seen.append(pss_kib()))
    return {
        "times": times[options.warmup :],
        "losses": [loss.item() for loss in losses],
        "memory": [growth, max(seen) - pss_before, peak],
    }


def sum_over_ranks(figures, device):
    """The same figures, summed over the ranks."""
    for name, values in figures.items():
        total = torch.tensor(values, dtype=torch.float64, device=device)
        if dist.is_initialized():
            dist.all_reduce(total)
        figures[name] = total.tolist()
    return figures


def impl_of(options):
    extras = [name for name in ("compile", "recompute", "offload") if getattr(options, name)]
    return "_".join([options.mode, *extras])


def print_line(figures, options, params):
    times = [total / options.ranks for total in figures["times"]]
    growth, pss_peak, peak = figures["memory"]
    line = {
        "bench": "step",
        "impl": impl_of(options),
        "device": options.device,
        "ranks": options.ranks,
        "params": params,
        "step_ms": round(statistics.median(times), 3),
        "best_ms": round(min(times), 3),
        "times_ms": [round(value, 3) for value in times],
        "losses": [round(total / options.ranks, 7) for total in figures["losses"]],
        "pss_growth_kib": int(growth),
        "pss_peak_kib": int(pss_peak),
        "peak_gib": round(peak / options.ranks / 2**30, 4),
        "version": f"torch {torch.__version__}",
    }
    print(json.dumps(line, separators=(",", ":")), flush=True)


def leave(rank, ranks, store):
    """Ends this process as soon as no rank needs it. DDP over gloo can deadlock when it is taken apart."""
    store.set(f"done {rank}", "")
    store.wait([f"done {other}" for other in range(ranks)])
    os._exit(0)


def run_rank(rank, options, path):
    torch.set_num_threads(max(1, os.cpu_count() // options.ranks) if options.offload else 1)
    cuda = options.device == "cuda"
    device = torch.device(options.device, rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        if options.ranks > torch.cuda.device_count():
            os.environ["NCCL_HOSTID"] = f"host{rank}"  # NCCL refuses two ranks of one host on one GPU
        torch.cuda.set_device(device)
    store = dist.FileStore(path, options.ranks)
    if options.mode != "plain":
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=options.ranks)
    pss_before = pss_kib()
    model = make_model(options, device)
    if options.data:
        load_weights(model, options.data)
    params = sum(parameter.numel() for parameter in model.parameters())
    training = Training(distribute(model, options, device), load_tokens(options, rank).to(device))
    del model
    figures = sum_over_ranks(measure(training, options, cuda, pss_before), device)
    if rank == 0:
        print_line(figures, options, params)
    leave(rank, options.ranks, store)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=pathlib.Path, metavar="DIR", help="write start weights and tokens, and end")
    parser.add_argument("--data", type=pathlib.Path, metavar="DIR", help="start from what --write left there")
    parser.add_argument("--mode", choices=("fsdp2", "ddp", "plain"), default="fsdp2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bf16", action="store_true", help="compute in bf16, reduce in fp32; fsdp2 only")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing of every layer")
    parser.add_argument("--offload", action="store_true", help="CPUOffloadPolicy; fsdp2 only")
    parser.add_argument("--compile", action="store_true", help="every layer")
    sizes = {"ranks": 1, "dim": 256, "layers": 6, "vocab": 8192, "batch": 2, "seq": 128, "steps": 15, "warmup": 3}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.bf16 and options.mode != "fsdp2":
        parser.error("--bf16 needs --mode fsdp2")
    if options.mode == "plain" and options.ranks != 1:
        parser.error("--mode plain has one rank")
    return options


def main():
    options = parse()
    if options.write:
        write_data(options.write, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        # Spawned, not forked: pages shared with a parent would blur each rank's share of memory.
        mp.start_processes(run_rank, (options, path), nprocs=options.ranks, start_method="spawn")


if __name__ == "__main__":
    main()
