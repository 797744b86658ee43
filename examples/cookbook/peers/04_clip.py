"""Clips the norm of all gradients of a model that FSDP2 sharded."""

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
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(201):
        x = torch.randn(64, 8, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).exp().log1p())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step:3}  gradient norm {norm.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
