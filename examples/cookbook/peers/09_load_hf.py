"""Fine-tunes a GPT-2 that transformers saved in a folder: 09_load_hf.py FOLDER

No rank ever holds the whole model.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel


def main(folder):
    dist.init_process_group()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    with torch.device("meta"):  # shapes, no memory
        model = GPT2LMHeadModel(GPT2Config.from_pretrained(folder))
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device=device)
    model.tie_weights()
    weights = model.state_dict()
    weights.pop("lm_head.weight")  # tied: not in the file
    dcp.load(weights, storage_reader=HuggingFaceStorageReader(folder))
    model.load_state_dict(weights, strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.arange(model.config.n_positions, device=device).unsqueeze(0)
    for step in range(1, 21):
        loss = model(text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
