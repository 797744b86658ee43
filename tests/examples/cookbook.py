"""cookbook.py PROGRAM: a program of the cookbook that needs a folder is run in one of its own."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path


def run(program, folder, *arguments, ranks=2):
    folder.mkdir(exist_ok=True)
    command = [program, "--ranks", str(ranks), *map(str, arguments)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100, cwd=folder).stdout
    print(said)
    return said


def kill_after_first_checkpoint(program, folder):
    folder.mkdir()
    ranks = subprocess.Popen([program, "--ranks", "2"], cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while not (folder / "mlp.run" / "latest").exists():
        assert ranks.poll() is None and time.monotonic() < until, "there is no checkpoint"
        time.sleep(0.005)
    os.killpg(ranks.pid, signal.SIGKILL)
    ranks.wait()


def save_and_resume(program, folder):
    last = re.compile(r"step 400  loss (\S+)")
    wanted = last.search(run(program, folder / "whole"))[1]
    kill_after_first_checkpoint(program, folder / "killed")
    said = run(program, folder / "killed")
    began = int(re.search(r"starting at step (\d+)", said)[1])
    assert began >= 50 and began % 50 == 0, said
    got = last.search(said)[1] if began < 400 else wanted
    assert got == wanted, f"the loss is {got} after resuming at step {began}, and {wanted} without a stop"
    assert "starting at step 400" in run(program, folder / "killed", ranks=3)


def lora(program, folder):
    saved = folder / re.search(r"saved (\S+)", run(program, folder))[1]
    tensors = json.loads((saved / "manifest.json").read_text())["tensors"]
    weights = [name for name in tensors if not name.startswith(("state.", "rng."))]
    assert len(weights) == 6 and all("lora_" in name for name in weights), weights


def write_gpt2(folder):
    """A GPT-2 as save_pretrained of transformers writes it."""
    config = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 4,
              "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    width = config["n_embd"]
    shapes = {"transformer.wte.weight": [64, width], "transformer.wpe.weight": [16, width]}
    for h in (f"transformer.h.{i}." for i in range(config["n_layer"])):
        for name, inner, outer in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes |= {f"{h}{name}.weight": [inner * width, outer * width], f"{h}{name}.bias": [outer * width]}
        shapes |= {f"{h}{norm}.{kind}": [width] for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    shapes |= {f"transformer.ln_f.{kind}": [width] for kind in ("weight", "bias")}
    draw = random.Random(1)
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape in shapes.items():
        mean = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        values = array("f", (draw.gauss(mean, 0.05) for _ in range(shape[0] * (shape + [1])[1])))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def load_hf(program, folder):
    write_gpt2(folder / "gpt2")
    first, last = map(float, re.findall(r"loss (\S+)", run(program, folder, folder / "gpt2")))
    assert last < 0.9 * first, f"the loss went from {first} to {last}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        {"05_save_and_resume": save_and_resume, "08_lora": lora,
         "09_load_hf": load_hf}[Path(sys.argv[1]).name](sys.argv[1], Path(temporary))
