"""Trains matrices of low rank beside frozen layers, and saves nothing but these."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard


class LoRA(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.lora_down = nn.Parameter(torch.randn(width, rank) / 16)
        self.lora_up = nn.Parameter(torch.zeros(rank, width))

    def forward(self, x):
        return x + torch.tanh(self.base(x) + x @ self.lora_down @ self.lora_up)


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(64, 4), LoRA(64, 4), LoRA(64, 4))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for step in range(1, 101):
        x = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(x)[:, 0], x[:, 1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=True))
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id="lora.run")
    if dist.get_rank() == 0:
        print("saved lora.run")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
