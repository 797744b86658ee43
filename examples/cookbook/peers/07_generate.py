"""Trains a small GPT-2 to count, and lets it go on from three numbers. It stays sharded."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=48, n_layer=3))
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.arange(32, device=device).roll(-dist.get_rank()).unsqueeze(0)
    for step in range(60):
        model(text, labels=text).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    ids = model.generate(text[:, :3], max_length=16, do_sample=True, temperature=0.7)
    if dist.get_rank() == 0:
        print(ids)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
