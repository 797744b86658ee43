"""hf_folders.py FSDP: models of transformers, imported and exported by `fsdp ckpt`, are the same models.

Every bit of the weights, and the logits. Exits 77 (skipped) where transformers is not installed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

try:
    from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig,
                              LlamaForCausalLM, logging)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GPT2 = dict(vocab_size=61, n_positions=32, n_embd=32, n_layer=3, n_head=4, bos_token_id=None, eos_token_id=None)
LLAMA = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=32)


def gpt2(**changes):
    return GPT2LMHeadModel(GPT2Config(**(GPT2 | changes)))


def llama(theta=10000.0, **changes):
    # Where the setting lies depends on the version of transformers.
    rope = dict(rope_theta=theta, rope_parameters=dict(rope_type="default", rope_theta=theta))
    return LlamaForCausalLM(LlamaConfig(**(LLAMA | changes), **rope))


def run(program, *arguments):
    subprocess.run([program, "ckpt", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def same_bits(ours, theirs):
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(
        ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def compare(program, folder, model, max_shard_size="5GB", max_file_bytes="5GB", keep=None):
    """Saves `model`, sends it through our checkpoint and back, and loads it. What differs, or None.

    keep: the values of config.json that we are given; the others have to come from shapes.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)  # also biases and norms, which start trivial
    model.eval().save_pretrained(folder / "theirs", max_shard_size=max_shard_size)
    # What transformers itself makes of its folder: a base model gets a head, and tables of a model that was cast to
    # bf16 are made anew in fp32.
    expected = AutoModelForCausalLM.from_pretrained(folder / "theirs").eval()
    if keep:
        path = folder / "theirs" / "config.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({key: values[key] for key in keep}))
    run(program, "import", "--hf", folder / "theirs", folder / "run")
    run(program, "verify", folder / "run")
    run(program, "export", "--hf", folder / "run", folder / "ours", "--max-file-bytes", max_file_bytes)
    loaded = AutoModelForCausalLM.from_pretrained(folder / "ours").eval()

    if type(loaded) is not type(expected):
        return f"a {type(loaded).__name__}"
    ours, theirs = loaded.state_dict(), expected.state_dict()
    if ours.keys() != theirs.keys():
        return f"names {sorted(ours.keys() ^ theirs.keys())}"
    different = [name for name in theirs if not same_bits(ours[name], theirs[name])]
    if different:
        return f"values of {different}"
    tied = lambda one: one.get_input_embeddings().weight.data_ptr() == one.get_output_embeddings().weight.data_ptr()
    if tied(loaded) != tied(expected):
        return "whether the head is tied"
    ids = torch.randint(expected.config.vocab_size, (2, 24))
    with torch.no_grad():
        return None if same_bits(loaded(ids).logits, expected(ids).logits) else "logits"
    # The place to compare with the logits of our own models: load folder / "run" in C++ with fsdp::load and call
    # the model with `ids`, as hf_parity.py does with run_model.


def cases():
    yield "GPT-2, tied", gpt2(), {}
    yield "GPT-2, untied", gpt2(tie_word_embeddings=False), {}
    yield "GPT-2, several files", gpt2(), dict(max_shard_size="30KB", max_file_bytes="50KB")
    yield "GPT-2, base model", GPT2Model(GPT2Config(**GPT2)), {}
    yield "Llama, untied", llama(num_key_value_heads=4), {}
    yield "Llama, tied", llama(num_key_value_heads=4, tie_word_embeddings=True), {}
    yield "Llama, GQA", llama(num_key_value_heads=2), {}
    yield "Llama, theta and epsilon", llama(theta=500000.0, num_key_value_heads=1, rms_norm_eps=1e-3), {}
    yield "GPT-2, sizes from shapes", gpt2(), dict(keep=("model_type", "n_head", "layer_norm_epsilon"))
    yield "Llama, sizes from shapes", llama(theta=500000.0, num_key_value_heads=2, tie_word_embeddings=True), dict(
        keep=("model_type", "num_attention_heads", "rms_norm_eps", "rope_parameters", "max_position_embeddings"))
    yield "Llama, bf16, several files", llama().to(torch.bfloat16), dict(max_shard_size="20KB", max_file_bytes="9KB")


def main(program):
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    bad = 0
    for title, model, options in cases():
        with tempfile.TemporaryDirectory() as folder:
            found = compare(program, Path(folder), model, **options)
        print(f"{title}: {found + ' differ' if found else 'the same'}")
        bad += found is not None
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
