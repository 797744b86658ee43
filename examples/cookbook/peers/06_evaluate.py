"""Measures accuracy on 101 rows, which the ranks cannot divide evenly. Every rank calls the model equally often."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


@torch.no_grad()
def accuracy(model, x):
    model.eval()
    right = torch.zeros((), device=x.device)
    # The same number of batches on every rank; their sizes may differ.
    for rows in x.tensor_split(dist.get_world_size())[dist.get_rank()].tensor_split(4):
        right += (model(rows).argmax(1) == (rows.sum(1) > 0)).sum()
    model.train()
    dist.all_reduce(right)
    return right.item() / len(x)


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1), nn.Linear(64, 2))
    fully_shard(model)
    test = torch.randn(101, 8, device=device)
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 201):
        x = torch.randn(64, 8, device=device)
        nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 != 0:
            continue
        right = accuracy(model, test)
        if dist.get_rank() == 0:
            print(f"step {step}  accuracy {right:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
