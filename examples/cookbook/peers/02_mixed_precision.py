"""Computes in bf16 with FSDP2. Shards, gradients and optimizer state stay fp32, and so does the loss."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(201):
        x = torch.randn(64, 8, device=device)
        loss = nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True).tanh())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step:3}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
