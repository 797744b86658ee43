"""The Llama of models/llama.h in PyTorch, with the same parameter names, shapes and operations."""

import torch
import torch.nn.functional as F
from torch import nn

EPS = 1e-5
THETA = 10000.0
HEAD_DIM = 64


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotary_tables(time, device):
    """cos and sin, each [time, HEAD_DIM]."""
    frequencies = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2, device=device).float() / HEAD_DIM)
    angles = torch.outer(torch.arange(time, device=device).float(), frequencies)
    both_halves = torch.cat([angles, angles], -1)
    return both_halves.cos(), both_halves.sin()


def apply_rotary(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q_proj, self.k_proj = linear(dim, dim), linear(dim, dim)
        self.v_proj, self.o_proj = linear(dim, dim), linear(dim, dim)

    def forward(self, x, cos, sin):
        batch, time, dim = x.shape
        q, k, v = (
            project(x).view(batch, time, dim // HEAD_DIM, HEAD_DIM).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, dim))


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        inner = (8 * dim // 3 + 255) // 256 * 256
        self.gate_proj, self.up_proj = linear(dim, inner), linear(dim, inner)
        self.down_proj = linear(inner, dim)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.self_attn, self.mlp = Attention(dim), MLP(dim)
        self.input_layernorm = nn.RMSNorm(dim, eps=EPS)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=EPS)

    def forward(self, x, cos, sin):
        y = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return y + self.mlp(self.post_attention_layernorm(y))


class Decoder(nn.Module):
    def __init__(self, dim, layers, vocab):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=EPS)
        self.tables = None

    def forward(self, ids):
        x = self.embed_tokens(ids)
        if self.tables is None:
            self.tables = rotary_tables(ids.shape[1], ids.device)
        cos, sin = (table.to(x.dtype) for table in self.tables)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """ids [batch, time] -> logits [batch, time, vocab]"""

    def __init__(self, dim, layers, vocab):
        super().__init__()
        self.model = Decoder(dim, layers, vocab)
        self.lm_head = linear(dim, vocab)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, ids):
        return self.lm_head(self.model(ids))
