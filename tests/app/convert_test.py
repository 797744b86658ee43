"""convert_test.py FSDP WRITE_CHECKPOINT: `fsdp ckpt export` and `import`, folders of others, and those they refuse."""

import json
import os
import pickle
import resource
import struct
import unittest

from command import (BYTES, CHECKPOINT, OK, STORAGE, USAGE, CommandTest, load_safetensors, main, save_safetensors,
                     write_checkpoint)

GPT2 = {"model_type": "gpt2", "vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 1, "n_head": 2,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "resid_pdrop": 0.1}
LLAMA = {"model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
         "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "tie_word_embeddings": False}


def gpt2_shapes(untied=False):
    shapes = {"transformer.wte.weight": [11, 8], "transformer.wpe.weight": [6, 8]}
    h = "transformer.h.0."
    for name, inner, outer in (("attn.c_attn", 8, 24), ("attn.c_proj", 8, 8), ("mlp.c_fc", 8, 32), ("mlp.c_proj", 32, 8)):
        shapes |= {f"{h}{name}.weight": [inner, outer], f"{h}{name}.bias": [outer]}
    for name in (f"{h}ln_1", f"{h}ln_2", "transformer.ln_f"):
        shapes |= {f"{name}.weight": [8], f"{name}.bias": [8]}
    return shapes | ({"lm_head.weight": [11, 8]} if untied else {})


def llama_shapes(tied=False):
    shapes = {"model.embed_tokens.weight": [11, 8], "model.norm.weight": [8]}
    for i in range(2):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}self_attn.q_proj.weight": [8, 8], f"{layer}self_attn.k_proj.weight": [4, 8],
                   f"{layer}self_attn.v_proj.weight": [4, 8], f"{layer}self_attn.o_proj.weight": [8, 8],
                   f"{layer}mlp.gate_proj.weight": [12, 8], f"{layer}mlp.up_proj.weight": [12, 8],
                   f"{layer}mlp.down_proj.weight": [8, 12], f"{layer}input_layernorm.weight": [8],
                   f"{layer}post_attention_layernorm.weight": [8]}
    return shapes | ({} if tied else {"lm_head.weight": [11, 8]})


def numel(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


def filled(shapes, dtype="F32"):
    """Tensors of these shapes, each with bytes of its own."""
    return {name: (dtype, shape, bytes((7 * i + 13 * k) % 251 for i in range(numel(shape) * BYTES[dtype])))
            for k, (name, shape) in enumerate(shapes.items())}


def as_saved(name, count):
    """What write_checkpoint.cpp puts into a tensor."""
    return struct.pack(f"<{count}f", *(((7 * i + 13 * len(name)) % 251) / 8 - 10 for i in range(count)))


class Export(CommandTest):
    def export(self, made, *more, expect=OK):
        out = self.folder / "out"
        report = self.json("ckpt", "export", "--hf", made, out, *more, expect=expect)
        return out, report

    def test_shards_become_one_model(self):
        made = write_checkpoint(self.folder / "run", 9, 3)
        out, report = self.export(made)
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
        tensors = load_safetensors(out / "model.safetensors")
        self.assertEqual({name: one[1] for name, one in tensors.items()}, gpt2_shapes())
        for name, (dtype, shape, data) in tensors.items():
            self.assertEqual((dtype, data), ("F32", as_saved(name, numel(shape))), name)
        self.assertEqual(report, {"folder": str(out), "model_type": "gpt2", "tensors": len(tensors),
                                  "bytes": sum(len(one[2]) for one in tensors.values()),
                                  "files": ["model.safetensors"]})
        config = json.loads((out / "config.json").read_text())
        # n_head and layer_norm_epsilon were saved; the rest comes from shapes.
        self.assertEqual(config, {"model_type": "gpt2", "vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 1,
                                  "n_head": 2, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
                                  "architectures": ["GPT2LMHeadModel"], "dtype": "float32", "torch_dtype": "float32"})
        with open(out / "model.safetensors", "rb") as file:
            self.assertIn(b'"__metadata__":{"format":"pt"}', file.read(200))

    def test_untied_and_low_precision(self):
        out, _ = self.export(write_checkpoint(self.folder / "run", 9, 2, "untied", "bf16"))
        tensors = load_safetensors(out / "model.safetensors")
        self.assertEqual({name: one[1] for name, one in tensors.items()}, gpt2_shapes(untied=True))
        self.assertEqual({one[0] for one in tensors.values()}, {"BF16"})
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["tie_word_embeddings"], config["dtype"]), (False, "bfloat16"))

    def test_a_tied_weight_saved_as_the_head(self):
        out, _ = self.export(write_checkpoint(self.folder / "run", 9, 2, "renamed"))
        tensors = load_safetensors(out / "model.safetensors")
        self.assertEqual(set(tensors), set(gpt2_shapes()))
        self.assertEqual(tensors["transformer.wte.weight"][2], as_saved("lm_head.weight", 88))

    def test_several_files(self):
        made = write_checkpoint(self.folder / "run", 9, 3)
        out, report = self.export(made, "--max-file-bytes", "1KB")
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(sorted(set(index["weight_map"].values())), report["files"])
        count = len(report["files"])
        self.assertGreater(count, 3)
        self.assertEqual(report["files"][1], f"model-00002-of-{count:05}.safetensors")
        found = {}
        for name in report["files"]:
            tensors = load_safetensors(out / name)
            self.assertTrue(len(tensors) == 1 or sum(len(one[2]) for one in tensors.values()) <= 1000)
            found |= {key: name for key in tensors}
        self.assertEqual(found, index["weight_map"])
        self.assertEqual(set(found), set(gpt2_shapes()))
        self.assertEqual(index["metadata"]["total_size"], report["bytes"])

    def test_a_config_is_needed(self):
        made = write_checkpoint(self.folder / "run", 9, 2, "noconfig")
        self.refused(CHECKPOINT, "ckpt", "export", "--hf", made, self.folder / "out",
                     says=["no run value 'model_config'", "--config", "model_type"])
        config = self.folder / "config.json"
        for text, says in (('{"model_type": "gpt2"}', "no 'layer_norm_epsilon'"),
                           ('{"model_type": "gpt2", "layer_norm_epsilon": 1e-5}', "no 'n_head'"),
                           ('{"model_type": "gpt2", "layer_norm_epsilon": 1e-5, "n_head": 3}', "3 heads"),
                           ('{"model_type": "mamba"}', "'mamba'; this library has gpt2 and llama"),
                           ('{"n_head": 2}', "no 'model_type'"), ('{"a": 1, "a": 2}', "twice"),
                           ("[]", "not a JSON object"), ("{", "is not JSON")):
            config.write_text(text)
            self.refused(CHECKPOINT, "ckpt", "export", "--hf", made, self.folder / "out", "--config", config, says=says)
        self.assertFalse((self.folder / "out").exists())
        config.write_text('{"model_type": "gpt2", "layer_norm_epsilon": 0.001, "n_head": 4}')
        out, _ = self.export(made, "--config", config)
        self.assertEqual(json.loads((out / "config.json").read_text())["n_head"], 4)
        self.refused(STORAGE, "ckpt", "export", "--hf", made, self.folder / "new", "--config", self.folder / "no.json",
                     says=["cannot read", "no.json", "No such file"])

    def test_a_given_config_wins(self):
        config = self.folder / "config.json"
        config.write_text('{"bos_token_id": 3, "n_head": 1}')
        out, _ = self.export(write_checkpoint(self.folder / "run", 9, 2), "--config", config)
        written = json.loads((out / "config.json").read_text())
        self.assertEqual((written["bos_token_id"], written["n_head"], written["layer_norm_epsilon"]), (3, 1, 1e-5))

    def test_what_does_not_fit_the_config(self):
        made = write_checkpoint(self.folder / "run", 9, 2, "untied")
        for values, says in (({"tie_word_embeddings": True}, ["tie_word_embeddings", "tensor of its own"]),
                             ({"n_layer": 2}, ["'transformer.h.1.ln_1.weight' is missing", "11 more"]),
                             ({"n_layer": 10**9}, "1000000000 layers"),
                             ({"vocab_size": 12}, ["[11,8]", "its config says [12,8]"]),
                             ({"activation_function": "relu"}, '"relu"; this library\'s model computes "gelu_new"')):
            config = self.folder / "config.json"
            config.write_text(json.dumps(values))
            self.refused(CHECKPOINT, "ckpt", "export", "--hf", made, self.folder / "out", "--config", config, says=says)
        other = write_checkpoint(self.folder / "other", 9, 2, "extras")
        self.refused(CHECKPOINT, "ckpt", "export", "--hf", other, self.folder / "out",
                     says="'conv.empty' is no part of a gpt2")
        self.assertEqual(sorted(os.listdir(self.folder)), ["config.json", "other", "run"])

    def test_a_folder_that_is_there_stays_as_it_is(self):
        made = write_checkpoint(self.folder / "run", 9, 2)
        (self.folder / "out").mkdir()
        self.refused(STORAGE, "ckpt", "export", "--hf", made, self.folder / "out/", says="it exists already")
        (self.folder / "file").write_text("")
        self.refused(STORAGE, "ckpt", "export", "--hf", made, self.folder / "file" / "out", says="cannot")
        self.fsdp("ckpt", "export", "--hf", made, str(self.folder / "new" / "out") + "/")
        self.assertEqual(sorted(os.listdir(self.folder / "new")), ["out"])

    def test_what_a_stopped_export_left(self):
        made = write_checkpoint(self.folder / "run", 9, 2)
        (self.folder / "out.part").mkdir()
        self.refused(STORAGE, "ckpt", "export", "--hf", made, self.folder / "out", says=["out.part", "Delete it"])

    def test_damage_leaves_nothing_behind(self):
        made = write_checkpoint(self.folder / "run", 9, 2)
        self.flip(made / "shard-1.safetensors", -1)
        self.refused(CHECKPOINT, "ckpt", "export", "--hf", made, self.folder / "out", says="is damaged")
        self.assertEqual(os.listdir(self.folder), ["run"])


class ExportSafetensors(CommandTest):
    """Whole tensors of any model."""

    def export(self, made, *more):
        out = self.folder / "out"
        return out, self.json("ckpt", "export", "--safetensors", made, out, *more)

    def test_any_model(self):
        made = write_checkpoint(self.folder / "run", 9, 3, "extras", "noconfig")
        out, report = self.export(made)
        self.assertEqual(os.listdir(out), ["model.safetensors"])
        tensors = load_safetensors(out / "model.safetensors")
        extras = {"conv.weight": [4, 3, 5, 2], "conv.empty": [4, 0], "conv.phase": [3, 2], "conv.steps": [7]}
        self.assertEqual({name: one[1] for name, one in tensors.items()}, gpt2_shapes() | extras)  # no moments
        for name, (dtype, shape, data) in tensors.items():
            if dtype == "F32":
                self.assertEqual(data, as_saved(name, numel(shape)), name)
        self.assertEqual(tensors["conv.steps"], ("I64", [7], struct.pack("<7q", *range(7))))
        self.assertEqual(report, {"folder": str(out), "tensors": len(tensors), "files": ["model.safetensors"],
                                  "bytes": sum(len(one[2]) for one in tensors.values())})
        self.assertIn(b'"lm_head.weight":"transformer.wte.weight"', (out / "model.safetensors").read_bytes()[:4000])
        info = self.json("ckpt", "inspect", out)
        self.assertEqual(info["aliases"], {"lm_head.weight": "transformer.wte.weight"})
        self.assertEqual((info["writer"], info["world"]), ("safetensors", 0))
        self.assertEqual(self.json("ckpt", "verify", out)["hashed"], False)
        self.assertIn("Such files have no hashes", self.fsdp("ckpt", "verify", out))
        self.flip(out / "model.safetensors", 0)
        self.refused(CHECKPOINT, "ckpt", "verify", out, says="model.safetensors")

    def test_several_files(self):
        made = write_checkpoint(self.folder / "run", 9, 2)
        out, report = self.export(made, "--max-file-bytes", "1KB")
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(sorted(set(index["weight_map"].values())), report["files"])
        self.assertEqual(set(index["weight_map"]), set(gpt2_shapes()))
        whole, _ = self.folder / "whole", self.fsdp("ckpt", "export", "--safetensors", made, self.folder / "whole")
        self.fsdp("ckpt", "diff", out, whole)

    def test_dtypes(self):
        made = write_checkpoint(self.folder / "run", 9, 2, "extras")
        for dtype, size in (("bf16", 2), ("f16", 2), ("f32", 4)):
            out = self.folder / dtype
            self.fsdp("ckpt", "export", "--safetensors", made, out, "--dtype", dtype)
            tensors = load_safetensors(out / "model.safetensors")
            self.assertEqual({name: one[0] for name, one in tensors.items() if one[0] != dtype.upper()},
                             {"conv.phase": "F64", "conv.steps": "I64"})  # complex numbers and integers stay
            name = "transformer.h.0.mlp.c_fc.weight"
            self.assertEqual(len(tensors[name][2]), 256 * size)
            values = struct.unpack("<256f", as_saved(name, 256))  # multiples of 1/8 below 32: f16 holds them
            if dtype == "f16":
                self.assertEqual(struct.unpack("<256e", tensors[name][2]), values)
        self.fsdp("ckpt", "export", "--hf", write_checkpoint(self.folder / "gpt", 9, 2), self.folder / "hf", "--dtype", "bf16")
        config = json.loads((self.folder / "hf" / "config.json").read_text())
        self.assertEqual((config["dtype"], config["torch_dtype"]), ("bfloat16", "bfloat16"))
        self.assertEqual({one[0] for one in load_safetensors(self.folder / "hf" / "model.safetensors").values()}, {"BF16"})

    def test_values_a_dtype_cannot_hold(self):
        theirs = self.folder / "theirs"
        theirs.mkdir()
        save_safetensors(theirs / "model.safetensors", {"large": ("F32", [2], struct.pack("<2f", 1.0, 70000.0))})
        self.refused(CHECKPOINT, "ckpt", "export", "--safetensors", theirs, self.folder / "out", "--dtype", "f16",
                     says=["'large' has a value of 70000", "F16 cannot hold", "BF16"])
        self.assertEqual(os.listdir(self.folder), ["theirs"])
        self.fsdp("ckpt", "export", "--safetensors", theirs, self.folder / "out", "--dtype", "bf16")

    def test_misuse(self):
        for more, says in ((["--hf", "--safetensors"], "Exactly 1 option"), (["--safetensors", "--dtype", "int8"], "bf16, f16 or f32"),
                           (["--safetensors", "--config", "a.json"], "--hf")):
            self.refused(USAGE, "ckpt", "export", "a", "b", *more, says=says)


class Shards(CommandTest):
    """Folders as the HuggingFaceStorageWriter of torch.distributed.checkpoint writes them."""

    def setUp(self):
        super().setUp()
        self.theirs = self.folder / "theirs"
        self.theirs.mkdir()
        self.numbers = list(range(24))  # [6, 4], of which one rank has rows 0 to 3; and as columns 0 to 2
        rows = [self.numbers[:16], self.numbers[16:]]
        columns = [[n for n in self.numbers if n % 4 < 3], [n for n in self.numbers if n % 4 == 3]]
        for rank, (row, column) in enumerate(zip(rows, columns)):
            self.save(rank, {"rows": ([4, 2][rank], 4, row, [4 * rank, 0]),
                             "columns": (6, [3, 1][rank], column, [0, 3 * rank])})

    def save(self, rank, parts):
        info = {name: {"saved_offsets": one[3]} for name, one in parts.items()}
        save_safetensors(self.theirs / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors",
                         {name: ("F32", [a, b], struct.pack(f"<{a * b}f", *values)) for name, (a, b, values, _) in parts.items()},
                         {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(info)})

    def test_inspect_verify_and_export(self):
        info = self.json("ckpt", "inspect", self.theirs)
        self.assertEqual(info["writer"], "torch.distributed.checkpoint")
        self.assertEqual({one["name"]: (one["shape"], one["boxes"]) for one in info["tensors"]},
                         {"rows": ([6, 4], 2), "columns": ([6, 4], 2)})
        self.assertIn("saved by    torch.distributed.checkpoint", self.fsdp("ckpt", "inspect", self.theirs))
        self.assertEqual(self.json("ckpt", "verify", self.theirs)["files"], 2)
        self.fsdp("ckpt", "export", "--safetensors", self.theirs, self.folder / "out")
        data = struct.pack("<24f", *self.numbers)
        self.assertEqual(load_safetensors(self.folder / "out" / "model.safetensors"),
                         {"columns": ("F32", [6, 4], data), "rows": ("F32", [6, 4], data)})
        self.fsdp("ckpt", "diff", self.theirs, self.folder / "out")

    def test_a_file_is_missing(self):
        (self.theirs / "shard-00001-model-00001-of-00001.safetensors").unlink()
        self.refused(CHECKPOINT, "ckpt", "inspect", self.theirs, says="is not covered")


class Import(CommandTest):
    def setUp(self):
        super().setUp()
        self.hf = self.folder / "hf"
        self.hf.mkdir()
        self.run_folder = self.folder / "run"

    def save(self, config, tensors):
        (self.hf / "config.json").write_text(json.dumps(config))
        save_safetensors(self.hf / "model.safetensors", tensors)

    def imported(self, *more):
        report = self.json("ckpt", "import", "--hf", self.hf, self.run_folder, *more)
        self.fsdp("ckpt", "verify", report["folder"])
        return report, self.json("ckpt", "inspect", self.run_folder)

    def exported(self):
        self.fsdp("ckpt", "export", "--hf", self.run_folder, self.folder / "out")
        return load_safetensors(self.folder / "out" / "model.safetensors")

    def test_there_and_back(self):
        tensors = filled(gpt2_shapes())
        self.save(GPT2, tensors)
        report, info = self.imported("--step", "40")
        self.assertEqual(report["folder"], str(self.run_folder / "step-00000040"))
        self.assertEqual(report["model_type"], "gpt2")
        self.assertEqual([info["step"], info["world"]], [40, 1])
        self.assertTrue(info["writer"].startswith("fsdp.cpp "))
        self.assertEqual(info["aliases"], {"lm_head.weight": "transformer.wte.weight"})
        self.assertEqual(info["run"]["model_config"], GPT2 | {"tie_word_embeddings": True})
        self.assertEqual((self.run_folder / "latest").read_text(), "step-00000040\n")
        self.assertEqual(self.exported(), tensors)

    def test_llama(self):
        for tied in (False, True):
            self.save(LLAMA | {"tie_word_embeddings": tied}, filled(llama_shapes(tied), "BF16"))
            self.run_folder = self.folder / f"run{tied}"
            _, info = self.imported()
            self.assertEqual(info["run"]["model_config"]["rope_theta"], 500000.0)
            self.assertEqual(len(info["aliases"]), int(tied))
            self.fsdp("ckpt", "export", "--hf", self.run_folder, self.folder / f"out{tied}")
            self.assertEqual(load_safetensors(self.folder / f"out{tied}" / "model.safetensors"),
                             filled(llama_shapes(tied), "BF16"))
            config = json.loads((self.folder / f"out{tied}" / "config.json").read_text())
            self.assertEqual(config["rope_parameters"]["rope_theta"], config["rope_theta"])

    def test_older_llama_configs(self):
        config = {key: value for key, value in LLAMA.items() if key not in ("rope_parameters", "num_key_value_heads")}
        self.save(config, filled(llama_shapes()))
        _, info = self.imported()
        found = info["run"]["model_config"]
        self.assertEqual((found["rope_theta"], found["num_key_value_heads"]), (10000.0, 1))

    def test_files_of_a_base_model_with_old_buffers(self):
        tensors = {name.removeprefix("transformer."): one for name, one in filled(gpt2_shapes()).items()}
        masks = {"h.0.attn.bias": ("F32", [1, 1, 6, 6], bytes(144)), "h.0.attn.masked_bias": ("F32", [], bytes(4))}
        self.save(GPT2, tensors | masks)
        _, info = self.imported()
        self.assertEqual([one["name"] for one in info["tensors"]], sorted(gpt2_shapes()))
        self.assertEqual(self.exported(), filled(gpt2_shapes()))

    def test_a_tied_head_that_is_there(self):
        tensors = filled(gpt2_shapes(untied=True))
        self.save(GPT2, tensors)  # transformers ties GPT-2 unless told otherwise
        _, info = self.imported()
        self.assertEqual(info["aliases"], {"lm_head.weight": "transformer.wte.weight"})
        self.run_folder = self.folder / "head"
        head = tensors["lm_head.weight"]
        del tensors["transformer.wte.weight"]
        self.save(GPT2, tensors)
        self.imported()
        self.assertEqual(self.exported()["transformer.wte.weight"], head)

    def split(self):
        """The model in two files, and their index."""
        tensors = list(filled(gpt2_shapes()).items())
        (self.hf / "config.json").write_text(json.dumps(GPT2))
        weight_map = {}
        for number, part in ((1, tensors[:5]), (2, tensors[5:])):
            name = f"model-0000{number}-of-00002.safetensors"
            save_safetensors(self.hf / name, dict(part))
            weight_map |= {key: name for key, _ in part}
        self.write_index(weight_map)
        return weight_map

    def write_index(self, weight_map):
        (self.hf / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def test_several_files_also_as_links(self):
        self.split()
        (self.hf / "blobs").mkdir()
        first = self.hf / "model-00001-of-00002.safetensors"
        first.rename(self.hf / "blobs" / "0123")
        first.symlink_to("blobs/0123")  # as in the cache of huggingface_hub
        self.imported()
        self.assertEqual(self.exported(), filled(gpt2_shapes()))

    def test_a_tensor_of_many_blocks(self):
        tensors = self.save_large(rows=100_000)  # 3.2 MB
        report, _ = self.imported()
        self.assertTrue(self.exported() == tensors, "other bytes")  # assertEqual would print them, for minutes
        self.flip(self.run_folder / "step-00000000" / report["files"][0], 2 << 20)
        self.refused(CHECKPOINT, "ckpt", "verify", self.run_folder, says="; 'transformer.wte.weight' lies there.")

    def test_bytes_do_not_pile_up_in_memory(self):
        if os.environ.get("FSDP_TEST_SANITIZED"):
            self.skipTest("a sanitizer needs address space of its own")
        self.save_large(rows=3_000_000)  # 96 MB
        # All of the address space: the program with its libraries, and a few blocks of 1 MiB.
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (48 << 20, 48 << 20))
        self.fsdp("ckpt", "import", "--hf", self.hf, self.run_folder, preexec_fn=limit)
        self.fsdp("ckpt", "verify", self.run_folder, preexec_fn=limit)
        self.fsdp("ckpt", "diff", self.run_folder, self.run_folder, preexec_fn=limit)
        self.fsdp("ckpt", "export", "--hf", self.run_folder, self.folder / "out", preexec_fn=limit)

    def save_large(self, rows):
        """A model with most of its bytes in one tensor; they do not repeat at multiples of a block."""
        large = ("F32", [rows, 8], (bytes(range(251)) * (rows * 32 // 251 + 1))[:rows * 32])
        tensors = filled(gpt2_shapes()) | {"transformer.wte.weight": large}
        self.save(GPT2 | {"vocab_size": rows}, tensors)
        return tensors

    def refuse(self, says, code=CHECKPOINT):
        """Nothing is written, either."""
        self.refused(code, "ckpt", "import", "--hf", self.hf, self.run_folder, says=says)
        self.assertFalse(self.run_folder.exists())

    def test_no_folder_of_hugging_face(self):
        self.refuse("it has no config.json")
        self.save(GPT2, filled(gpt2_shapes()))
        self.imported()
        self.refused(CHECKPOINT, "ckpt", "import", "--hf", self.run_folder, self.folder / "b", says="checkpoint of this library")
        self.refused(CHECKPOINT, "ckpt", "import", "--hf", self.folder / "nothing", self.folder / "b", says="does not exist")
        self.refused(CHECKPOINT, "ckpt", "import", "--hf", self.hf / "config.json", self.folder / "b", says="has no config.json")
        self.refused(CHECKPOINT, "ckpt", "import", "--hf", self.hf, self.run_folder,
                     says=["holds checkpoints already", "step-00000000"])
        self.refused(STORAGE, "ckpt", "import", "--hf", self.hf, self.hf / "config.json" / "run", says="cannot make folder")

    def test_pickles(self):
        (self.hf / "config.json").write_text(json.dumps(GPT2))
        self.refuse("neither model.safetensors nor")
        (self.hf / "pytorch_model.bin").write_bytes(pickle.dumps({}))
        self.refuse(["pytorch_model.bin", "save_pretrained"])
        (self.hf / "model.safetensors").write_bytes(pickle.dumps({"weight": 1}))
        self.refuse("it is a pickle")

    def test_an_index_that_lies(self):
        good = self.split()
        for file, says in (("../secret.safetensors", "'../secret.safetensors' is not the name"),
                           ("/etc/passwd", "is not the name"), ("sub/model.safetensors", "is not the name"),
                           ("config.json", "is not the name"), ("gone.safetensors", "gone.safetensors, which is missing"),
                           (7, "is not a string")):
            self.write_index(good | {"transformer.wte.weight": file})
            self.refuse(says)
        self.write_index(good | {"more.weight": "model-00001-of-00002.safetensors"})
        self.refuse("'more.weight' lies in model-00001-of-00002.safetensors, but it does not")
        self.write_index({})
        self.refuse("0 files")
        (self.hf / "model.safetensors.index.json").write_text('{"weight_map": []}')
        self.refuse("is not an object")
        self.split()
        save_safetensors(self.hf / "model-00002-of-00002.safetensors", filled(gpt2_shapes()))
        self.refuse("lies in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors")

    def test_weights_that_do_not_fit(self):
        tensors = filled(gpt2_shapes())
        wrong = {"transformer.wpe.weight": ("F32", [8, 6], tensors["transformer.wpe.weight"][2])}
        for changed, says in ((tensors | wrong, "has the shape [8,6]; its config says [6,8]"),
                              ({k: v for k, v in tensors.items() if "ln_f" not in k}, ["'transformer.ln_f.weight'", "1 more"]),
                              (tensors | {"score.weight": ("F32", [1], bytes(4))}, "'score.weight' is no part of a gpt2"),
                              (filled(gpt2_shapes(), "I8"), ["dtype I8", "quantization"])):
            self.save(GPT2, changed)
            self.refuse(says)

    def test_configs_our_models_do_not_compute(self):
        for config, values, says in (
                (GPT2, {"model_type": "mistral"}, "'mistral'"), (GPT2, {"model_type": None}, "no 'model_type'"),
                (GPT2, {"n_inner": 16}, "'n_inner' is 16"), (GPT2, {"scale_attn_weights": False}, "'scale_attn_weights'"),
                (GPT2, {"layer_norm_epsilon": "small"}, "not a number"), (GPT2, {"n_head": 0}, "'n_head' is 0"),
                (GPT2, {"quantization_config": {}}, "quantization_config"), (GPT2, {"n_embd": 2**62}, "'n_embd'"),
                (LLAMA, {"hidden_act": "gelu"}, "'hidden_act'"), (LLAMA, {"attention_bias": True}, "'attention_bias'"),
                (LLAMA, {"head_dim": 6}, "'head_dim' is 6"), (LLAMA, {"num_key_value_heads": 3}, "3 key/value heads"),
                (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0}}, '"linear"'),
                (LLAMA, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, '"llama3"'),
                (LLAMA, {"rope_theta": 20000.0}, "'rope_theta' is there twice"),
                (LLAMA, {"tie_word_embeddings": "yes"}, "not true or false")):
            self.save(config | values, filled(gpt2_shapes() if config is GPT2 else llama_shapes()))
            self.refuse(says)
        (self.hf / "config.json").write_text("[" * 100_000)
        self.refuse("nested deeper")
        (self.hf / "config.json").write_text("[]")
        self.refuse("is not an object")
        (self.hf / "config.json").write_text(" " * (2 << 20))
        self.refuse("at most 1048576", STORAGE)

    def test_files_that_are_no_safetensors(self):
        self.save(GPT2, filled(gpt2_shapes()))
        path = self.hf / "model.safetensors"
        whole = path.read_bytes()
        for bad in (b"", b"short", whole[:-1], whole + b"x", struct.pack("<Q", 1 << 60) + whole[8:], b"\0" * 4096):
            path.write_bytes(bad)
            self.refuse("model.safetensors")


if __name__ == "__main__":
    main()
