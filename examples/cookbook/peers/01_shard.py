"""Shards a model over the ranks with FSDP2 and trains it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    torch.manual_seed(dist.get_rank())  # other data on every rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(201):
        x = torch.randn(64, 8, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step:3}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
