"""Clips the norm of all gradients of a model that accelerate sharded."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn


def main():
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    torch.manual_seed(accelerator.process_index)
    for step in range(201):
        x = torch.randn(64, 8, device=accelerator.device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).exp().log1p())
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.print(f"step {step:3}  gradient norm {norm.item():.4f}")


if __name__ == "__main__":
    main()
