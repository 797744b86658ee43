"""Saves the run every 50 steps with DCP. Started again, on any number of ranks, it goes on from the last checkpoint."""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def checkpoints():
    """The complete ones, oldest first: DCP writes .metadata last."""
    return sorted(path.parent for path in Path("mlp.run").glob("step-*/.metadata"))


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if checkpoints():
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=checkpoints()[-1])
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        start = state["step"]
    if dist.get_rank() == 0:
        print(f"starting at step {start}")
    for step in range(start + 1, 401):
        torch.manual_seed(step * dist.get_world_size() + dist.get_rank())  # the same data after a restart
        x = torch.randn(64, 8, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 != 0:
            continue
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": step}
        dcp.save(state, checkpoint_id=f"mlp.run/step-{step:08}")
        if dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.6f}")
            for old in checkpoints()[:-2]:
                shutil.rmtree(old)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
