"""Adds up the gradients of four microbatches on each rank with FSDP2, and reduces them once per step."""

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
    for i in range(1, 401):
        model.set_requires_gradient_sync(i % 4 == 0)
        x = torch.randn(16, 8, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh())
        (loss / 4).backward()
        if i % 4 != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and i % 200 == 0:
            print(f"microbatch {i}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
