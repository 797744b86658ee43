"""GPT-2 in plain PyTorch, with the parameter names of Hugging Face's folders.

Usage: gpt2.py FOLDER [--vocab 257 --context 128 --width 128 --layers 4 --heads 4 --seed 0]
       writes a folder with new weights: config.json and model.safetensors
"""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

STD = 0.02


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, width = config["n_head"], config["n_embd"]
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, eps = config["n_embd"], config["layer_norm_epsilon"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attn, self.mlp = Attention(config), MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.wte, self.wpe = nn.Embedding(config["vocab_size"], width), nn.Embedding(config["n_positions"], width)
        self.h = nn.ModuleList(Block(config) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(width, eps=config["layer_norm_epsilon"])

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2(nn.Module):
    """ids [batch, time] -> logits [batch, time, vocab]. Input and output embeddings are one weight."""

    def __init__(self, config):
        super().__init__()
        self.transformer = Transformer(config)

    def forward(self, ids):
        return F.linear(self.transformer(ids), self.transformer.wte.weight)


@torch.no_grad()
def draw_weights(model, layers):
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            residual = name.endswith("c_proj.weight")
            parameter.normal_(0.0, STD / math.sqrt(2 * layers) if residual else STD)


def load(folder):
    """The model of a Hugging Face folder."""
    model = GPT2(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def write(folder, config, seed):
    torch.manual_seed(seed)
    model = GPT2(config)
    draw_weights(model, config["n_layer"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    sizes = {"vocab": 257, "context": 128, "width": 128, "layers": 4, "heads": 4, "seed": 0}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    config = {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": options.vocab,
        "n_positions": options.context,
        "n_embd": options.width,
        "n_layer": options.layers,
        "n_head": options.heads,
        "layer_norm_epsilon": 1e-5,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
    }
    write(options.folder, config, options.seed)


if __name__ == "__main__":
    main()
