"""hf_parity.py RUN_MODEL: our GPT-2 and Llama against Hugging Face's, with the same weights and tokens.

Compares logits, loss and every gradient in fp32. Exits 77 (skipped) where transformers is not installed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# Relative to the largest value. Both sides are fp32, and their kernels may add in another order.
TOLERANCE = 1e-5

GPT2 = dict(vocab_size=61, n_positions=32, n_embd=32, n_layer=3, n_head=4, layer_norm_epsilon=1e-5)
LLAMA = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5)


def gpt2(tied):
    config = GPT2 | dict(tie_word_embeddings=tied)
    return "gpt2", config, GPT2LMHeadModel(GPT2Config(**config, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                                     bos_token_id=None, eos_token_id=None))


def llama(tied, theta=10000.0, **changes):
    config = LLAMA | changes | dict(tie_word_embeddings=tied)
    # Where the setting lies depends on the version of transformers.
    rope = dict(rope_theta=theta, rope_parameters=dict(rope_type="default", rope_theta=theta))
    return "llama", config | dict(rope_theta=theta), LlamaForCausalLM(LlamaConfig(**config, **rope))


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def compare(program, name, config, model):
    """The largest difference of logits, loss and gradients."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)  # also biases and norms, which start trivial
    tokens = torch.randint(config["vocab_size"], (2, 25))
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "in.pt", Path(folder) / "out.pt"
        weights = {key: value.detach().clone() for key, value in model.named_parameters()}
        torch.save(dict(model=name, config=config, weights=weights, ids=ids, targets=targets), given)
        subprocess.run([program, given, result], check=True)
        ours = torch.load(result, weights_only=False)  # typed dicts need more than weights_only

    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    found = {"logits": difference(ours["logits"], logits), "loss": difference(ours["loss"], loss)}
    for key, parameter in model.named_parameters():
        found[key] = difference(ours["grads"][key], parameter.grad)
    return max(found.items(), key=lambda item: item[1])


def main(program):
    torch.manual_seed(0)
    cases = {
        "GPT-2, tied": gpt2(True),
        "GPT-2, untied": gpt2(False),
        "Llama, untied": llama(False),
        "Llama, tied": llama(True),
        "Llama, all heads": llama(False, num_key_value_heads=4),
        "Llama, theta 500000": llama(False, theta=500000.0),
    }
    bad = 0
    for title, case in cases.items():
        where, largest = compare(program, *case)
        print(f"{title}: largest relative difference {largest:.1e} ({where})")
        bad += not largest <= TOLERANCE
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
