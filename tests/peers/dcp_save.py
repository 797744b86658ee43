"""dcp_save.py FOLDER SAVE_RUN FSDP: PyTorch FSDP2 on two ranks saves weights and moments with its
HuggingFaceStorageWriter, as shards and consolidated. Three ranks of ours load both and save them again, and `fsdp ckpt
export --safetensors` makes whole tensors of them. Every bit is compared with what PyTorch had."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from dcp_load import Net

KINDS = {"shards": {"save_distributed": True}, "whole": {"save_distributed": True, "enable_consolidation": True}}
FOLDERS = ["shards", "whole", "whole/sharded"]


def work(rank, folder):
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(str(folder / "store"), 2))
    torch.manual_seed(3)
    model = Net()
    for part in (model.up, model.mid, model.down):
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    for _ in range(4):
        model(torch.randn(8, 13)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    moments = get_optimizer_state_dict(model, optimizer, options=flat)
    state = get_model_state_dict(model) | {k: v for k, v in moments.items() if k.startswith("state.")}
    for kind, options in KINDS.items():
        dcp.save(dict(state), storage_writer=HuggingFaceStorageWriter(str(folder / kind), **options))
    whole = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).detach() for k, v in state.items()}
    if rank == 0:
        torch.save(whole, folder / "expected.pt")
    dist.destroy_process_group()


def compare(found, expected, what):
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name, tensor in expected.items():
        same = found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        assert same, f"{what}: {name} differs"
    return len(expected)


def main():
    folder, program, command = Path(sys.argv[1]), *sys.argv[2:4]
    mp.spawn(work, args=(folder,), nprocs=2)
    expected = torch.load(folder / "expected.pt")
    weights = {name: tensor for name, tensor in expected.items() if not name.startswith("state.")}
    for kind in FOLDERS:
        theirs, run = folder / kind, folder / "runs" / kind.replace("/", "-")
        lost = kind == "whole" and bool((load_file(next(theirs.glob("*.safetensors")))["state.up.weight.step"] == 0).all())
        count = 0
        if lost:  # by PyTorch, when it consolidates
            refused = subprocess.run([program, theirs, run], stderr=subprocess.PIPE, text=True)
            assert refused.returncode == 1 and "whose steps are all 0" in refused.stderr, refused.stderr
        else:
            subprocess.run([program, theirs, run], check=True)
            found = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
            dcp.load(found, storage_reader=HuggingFaceStorageReader(str(run / (run / "latest").read_text().strip())))
            count = compare(found, expected, kind)
        for dtype, name in ((None, "f32"), (torch.bfloat16, "bf16"), (torch.float16, "f16")):
            out = folder / "out" / f"{run.name}-{name}"
            subprocess.run([command, "ckpt", "export", "--safetensors", theirs, out, "--dtype", name], check=True,
                           stdout=subprocess.DEVNULL)
            compare(load_file(out / "model.safetensors"),
                    {key: tensor.to(dtype or tensor.dtype) for key, tensor in weights.items()}, out.name)
        info = json.loads(subprocess.run([command, "ckpt", "inspect", theirs, "--json"], check=True,
                                         stdout=subprocess.PIPE).stdout)
        assert {one["name"]: one["shape"] for one in info["tensors"]} == {k: list(v.shape) for k, v in expected.items()}
        subprocess.run([command, "ckpt", "verify", theirs], check=True, stdout=subprocess.DEVNULL)
        print(f"{kind}: our 3 ranks have {count} tensors of FSDP2's 2 ranks, bit for bit; the exports have {len(weights)}")


if __name__ == "__main__":
    main()
