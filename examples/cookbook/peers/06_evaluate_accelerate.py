"""Measures accuracy on 101 rows, which the ranks cannot divide evenly, with accelerate."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def accuracy(accelerator, model, loader):
    model.eval()
    right = 0
    for (rows,) in loader:
        hits = model(rows).argmax(1) == (rows.sum(1) > 0)
        right += accelerator.gather_for_metrics(hits).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.randn(101, 8)), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    torch.manual_seed(1 + accelerator.process_index)
    for step in range(1, 201):
        x = torch.randn(64, 8, device=accelerator.device)
        accelerator.backward(nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()))
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.print(f"step {step}  accuracy {accuracy(accelerator, model, loader):.3f}")


if __name__ == "__main__":
    main()
