"""Saves the run every 50 steps with accelerate. Started again, it goes on from the last checkpoint."""

import shutil
from pathlib import Path

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn


def main():
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    torch.manual_seed(accelerator.process_index)
    saved = sorted(Path("mlp.run").glob("step-*"))
    start = int(saved[-1].name[5:]) if saved else 0
    if saved:
        accelerator.load_state(saved[-1])
    accelerator.print(f"starting at step {start}")
    for step in range(start + 1, 401):
        x = torch.randn(64, 8, device=accelerator.device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 != 0:
            continue
        accelerator.save_state(f"mlp.run/step-{step:08}")
        accelerator.print(f"step {step}  loss {loss.item():.6f}")
        if accelerator.is_main_process:
            for old in sorted(Path("mlp.run").glob("step-*"))[:-2]:
                shutil.rmtree(old)


if __name__ == "__main__":
    main()
