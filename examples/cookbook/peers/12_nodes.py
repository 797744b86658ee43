"""One program for one machine and for many: the model is sharded inside a machine and replicated across machines."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh(device.type, (dist.get_world_size() // local, local), mesh_dim_names=("nodes", "ranks"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 1))
    fully_shard(model, mesh=mesh)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(200):
        x = torch.randn(64, 8, device=device)
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh()).backward()
        optimizer.step()
        optimizer.zero_grad()
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on", *dict.fromkeys(hosts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
