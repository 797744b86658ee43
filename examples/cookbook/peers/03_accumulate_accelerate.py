"""Adds up the gradients of four microbatches on each rank with accelerate, and reduces them once per step."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn


def main():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(gradient_accumulation_steps=4, fsdp_plugin=plugin)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    torch.manual_seed(accelerator.process_index)
    for i in range(1, 401):
        with accelerator.accumulate(model):
            x = torch.randn(16, 8, device=accelerator.device)
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if i % 200 == 0:
            accelerator.print(f"microbatch {i}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
