"""Prints the memory of operators of five training steps, and how often, how much and how long ranks communicated."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, ProfileKwargs
from torch import nn


def main():
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Linear"]
    )
    profile = ProfileKwargs(profile_memory=True, record_shapes=True)
    accelerator = Accelerator(fsdp_plugin=plugin, kwargs_handlers=[profile])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    torch.manual_seed(accelerator.process_index)
    with accelerator.profile() as prof:
        for step in range(5):
            x = torch.randn(64, 64, device=accelerator.device)
            accelerator.backward(nn.functional.mse_loss(model(x), x.roll(1, 1)))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(prof.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=10))
    for op in prof.key_averages(group_by_input_shape=True):
        if op.key.startswith(("c10d::", "gloo:", "nccl:")):
            accelerator.print(f"{op.key:<40} {op.count:4} times  {op.input_shapes}  {op.cpu_time_total / 1e6:.4f} s")


if __name__ == "__main__":
    main()
