"""Rank 1 gets stuck in step 3. The other ranks do not wait for ever: their error names it."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    fully_shard(model)
    watch = dist.new_group(backend="gloo")  # monitored_barrier() is gloo's
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 6):
        if dist.get_rank() == 1 and step == 3:
            time.sleep(3)  # the bug
        dist.monitored_barrier(watch, timeout=timedelta(seconds=1), wait_all_ranks=True)
        x = torch.randn(64, 8, device=device)
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
