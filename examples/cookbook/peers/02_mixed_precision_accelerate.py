"""Computes in bf16 with accelerate. Shards, gradients and optimizer state stay fp32, and so does the loss."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn


def main():
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    torch.manual_seed(accelerator.process_index)
    for step in range(201):
        x = torch.randn(64, 8, device=accelerator.device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.print(f"step {step:3}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
