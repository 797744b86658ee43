"""hf_logits.py START_FROM_HF FSDP: models of transformers start our training on several ranks, and what we trained and
exported is loaded by transformers. Both times the logits are the same."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from hf_parity import gpt2, llama

# Relative to the largest value: kernels of both sides may add in another order.
TOLERANCE = 1e-5


def read(path, like):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).view(like.shape)


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def compare(program, command, name, config, model, ranks):
    with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
        folder = Path(temporary)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        model.save_pretrained(folder / "start")
        ids = torch.randint(config["vocab_size"], (2, 24))
        (folder / "ids").write_bytes(ids.numpy().tobytes())
        subprocess.run([program, folder, str(ranks)], check=True)
        logits = model(ids).logits
        start = difference(read(folder / "logits", logits), logits)
        subprocess.run([command, "ckpt", "export", folder / "run", folder / "out", "--hf"], check=True,
                       stdout=subprocess.DEVNULL)
        trained = AutoModelForCausalLM.from_pretrained(folder / "out")(ids).logits
        end = difference(read(folder / "trained", trained), trained)
        moved = difference(trained, logits)
    print(f"{name} on {ranks} ranks: loaded {start:.1e}, exported {end:.1e} (a step changed them by {moved:.1e})")
    return start <= TOLERANCE and end <= TOLERANCE and moved > 100 * TOLERANCE


def main():
    torch.manual_seed(0)
    cases = [("gpt2, tied", gpt2(True), 3), ("gpt2", gpt2(False), 2), ("llama, tied", llama(True), 2),
             ("llama", llama(False), 3)]
    results = [compare(*sys.argv[1:3], name, config, model, ranks) for name, (_, config, model), ranks in cases]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
