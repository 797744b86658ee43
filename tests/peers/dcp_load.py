"""dcp_load.py FOLDER: PyTorch FSDP2 on two ranks loads FOLDER/run, which was saved on three ranks of ours, through
torch.distributed.checkpoint, and goes on training. Everything is compared with the bytes in FOLDER/dump."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict,
    set_optimizer_state_dict)
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mid = nn.Linear(13, 29), nn.Linear(29, 31)
        self.norm, self.down = nn.LayerNorm(31), nn.Linear(31, 7)

    def forward(self, x):
        return self.down(self.norm(torch.tanh(self.mid(torch.tanh(self.up(x))))))


def bits_of(tensor):
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().contiguous().view(-1).view(torch.uint8)


def compare(state, dump):
    """How many tensors are the same, bit for bit, as what our library had in memory."""
    for name, tensor in state.items():
        wanted = torch.frombuffer(bytearray((dump / name).read_bytes()), dtype=torch.uint8)
        assert torch.equal(bits_of(tensor), wanted), f"{name} differs"
    return len(state)


def settings_of(checkpoint):
    """The optimizer's settings as PyTorch knows them, by parameter."""
    settings = {}
    for group in json.loads((checkpoint / "manifest.json").read_text())["run"]["optimizer"]["groups"]:
        options = dict(group["options"])
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        options["amsgrad"] = bool(options["amsgrad"])
        settings.update({name: options for name in group["params"]})
    return settings


def work(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(str(folder / "store"), 2))
    torch.manual_seed(7)
    model = Net()
    for part in (model.up, model.mid, model.down):
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    checkpoint = folder / "run" / (folder / "run" / "latest").read_text().strip()

    weights = get_model_state_dict(model)
    dcp.load(weights, storage_reader=HuggingFaceStorageReader(str(checkpoint)))
    set_model_state_dict(model, weights)
    found = compare(get_model_state_dict(model), folder / "dump")

    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    everything = get_optimizer_state_dict(model, optimizer, options=flat)
    moments = {name: value for name, value in everything.items() if name.startswith("state.")}
    dcp.load(moments, storage_reader=HuggingFaceStorageReader(str(checkpoint)))
    for name, options in settings_of(checkpoint).items():
        for key, value in options.items():
            everything[f"param_groups.{name}.{key}"] = value
    set_optimizer_state_dict(model, optimizer, everything | moments, options=flat)
    now = get_optimizer_state_dict(model, optimizer, options=flat)
    found += compare({n: v for n, v in now.items() if n.startswith("state.")}, folder / "dump")
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], tuple(group["betas"])) == (3e-3, 0.05, (0.9, 0.999)), group

    model(torch.randn(8, 13)).square().mean().backward()
    optimizer.step()
    if rank == 0:
        print(f"FSDP2 on 2 ranks has {found} tensors of our 3 ranks, bit for bit, and goes on")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(Path(sys.argv[1]),), nprocs=2)
