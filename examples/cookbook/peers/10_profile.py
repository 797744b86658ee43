"""Prints the memory of operators of five training steps, and how often, how much and how long ranks communicated."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with profile(profile_memory=True, record_shapes=True) as prof:
        for step in range(5):
            x = torch.randn(64, 64, device=device)
            nn.functional.mse_loss(model(x), x.roll(1, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(prof.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=10))
        for op in prof.key_averages(group_by_input_shape=True):
            if op.key.startswith(("c10d::", "gloo:", "nccl:")):
                print(f"{op.key:<40} {op.count:4} times  {op.input_shapes}  {op.cpu_time_total / 1e6:.4f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
