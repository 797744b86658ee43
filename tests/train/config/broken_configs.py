"""300 config files that are wrong, 50 of each kind, made from the schema and the built-in config file.

They are the same in every run. Each says which line and key the message must name.
"""

import random
import re
from dataclasses import dataclass, field

from config_files import ConfigFile, schema_keys, types, ways

EACH = 50
MODEL = "model_config_tiny_gpt2"


@dataclass
class Broken:
    kind: str
    text: str
    lines: set  # one of them is named
    key: str
    says: list = field(default_factory=list)


def misspelt(draw):
    """One or two letters of a key are wrong. The key is suggested."""
    example = ConfigFile()
    keys = sorted(path for path in example.places()
                  if len(path.rpartition(".")[2]) > 4 and not re.search(r"(stages|examples)\.\w+$|model_config_\w+$", path))
    for path in draw.sample(keys, EACH):
        name = path.rpartition(".")[2]
        wrong = misspell(name, draw)
        file = example.copy()
        index = example.places()[path]
        file.lines[index] = file.lines[index].replace(name + ":", wrong + ":", 1)
        yield Broken("misspelt", file.text(), {index + 1}, wrong, [f"did you mean '{name}'?"])


def misspell(name, draw):
    at = draw.randrange(1, len(name) - 1)
    return draw.choice([name[:at] + name[at + 1:], name[:at] + name[at] + name[at:],
                        name[:at] + ("q" if name[at] != "q" else "z") + name[at + 1:], name + "s" + name[-1],
                        name.upper() + "x"])


WRONG = {  # values that are of none of these types
    "integer": ["many", "1.5", "'4'", "[1]", "{a: 1}", "1e3", "0x10", "1_000", "08", ".inf", "~", ""],
    "number": ["fast", "'0.1'", "[0.1]", "nan", "1,5", "1/3", ".inf", "inf"],
    "boolean": ["yes", "off", "1", "'true'", "[true]", "maybe"],
    "string": ["3", "true", "{a: b}", "1.5"],
    "array": ["3", "{a: b}", "[a, [b]]", "[1]"],
}


def wrong_type(draw):
    keys = schema_keys()
    made = []
    for path, key in keys.items():
        kinds = types(key)
        kind = next((one for one in ("integer", "number", "boolean", "array", "string") if one in kinds), None)
        if kind is None:
            continue
        for value in WRONG[kind]:
            is_null = value in ("~", "") and {"type": "null"} in ways(key)
            if is_null or (kind == "integer" and "boolean" in kinds and value == "true"):
                continue
            made.append((path, value))
    for path, value in draw.sample(made, EACH):
        file = ConfigFile()
        line = file.set(path, value)
        yield Broken("wrong type", file.text(), {line}, path.rpartition(".")[2])


def out_of_range(draw):
    made = []
    for path, key in schema_keys().items():
        for way in ways(key):
            if "enum" in way:
                made += [(path, "something"), (path, "'" + str(way["enum"][0]) + "x'")]
            step = 1 if way.get("type") == "integer" else 0.001
            if "minimum" in way:
                made += [(path, way["minimum"] - step), (path, -1000000)]
            if "exclusiveMinimum" in way:
                made += [(path, way["exclusiveMinimum"]), (path, -1e-9)]
            if "maximum" in way:
                made += [(path, way["maximum"] + step), (path, int(way["maximum"] * 1000 + 1000))]
            if "exclusiveMaximum" in way:
                made += [(path, way["exclusiveMaximum"]), (path, 1.5)]
    for path, value in draw.sample(made, EACH):
        file = ConfigFile()
        line = file.set(path, value)
        yield Broken("out of range", file.text(), {line}, path.rpartition(".")[2])


def duplicate(draw):
    """A key or a section stands twice in its section, with the same value or another."""
    example = ConfigFile()
    for path in draw.sample(sorted(example.places()), EACH):
        file = example.copy()
        index = example.places()[path]
        indent = len(file.lines[index]) - len(file.lines[index].lstrip())
        end = index + 1
        while end < len(file.lines) and (not file.lines[end].strip() or file.lines[end].startswith(" " * (indent + 1))):
            end += 1
        copy = file.lines[index:end]
        file.lines[end:end] = copy
        yield Broken("duplicate", file.text(), {end + 1}, path.rpartition(".")[2], [f"line {index + 1}"])


def bad_indentation(draw):
    """A line between two others of its section is indented by too much, by too little, or by a tab."""
    example = ConfigFile()
    places = example.places()
    made = []
    for path, index in places.items():
        indent = path.count(".") * 2
        before, after = example.lines[index - 1], example.lines[index + 1] if index + 1 < len(example.lines) else ""
        if indent and all(re.match(" " * indent + r"\w", line) and "{" not in line for line in (before, after)):
            made += [(path, index, indent + more) for more in (1, 2, -1)] + [(path, index, "\t")]
    for path, index, indent in draw.sample(made, EACH):
        file = example.copy()
        file.lines[index] = (indent if indent == "\t" else " " * indent) + file.lines[index].lstrip()
        yield Broken("bad indentation", file.text(), {index + 1}, path.rpartition(".")[2])


def together():
    """Values of the first stage that are allowed, but not together: ({key: value}, the key that is named)."""
    yield {"distributed.strategy": "fsdp", "distributed.fsdp.enabled": "false"}, "enabled"
    yield {"training.precision": "bf16-true", "training.reproducible": "true"}, "precision"
    yield {"distributed.sync_batchnorm": "true", "training.reproducible": "true"}, "sync_batchnorm"
    for warmup, steps in ((21, 20), (1000, 999), (20, 1), (5, 4)):
        yield {"schedule.warmup_steps": warmup, "training.max_steps": steps}, "warmup_steps"
    for name in ("linear", "cosine", "wsd"):
        yield {"schedule.name": name, "schedule.decay_steps": 181, "training.max_steps": 200}, "decay_steps"
    for name in ("auto", "tokens", "text", "jsonl"):
        yield {"data.format": name}, "format"
    for name in ("docs", "synthetic"):
        yield {"data.format": name, "data.train": "[a.txt]"}, "train"
        yield {"data.format": name, "data.validation": "a.txt"}, "validation"
    yield {"checkpoint.keep_best": "true", "eval.every_steps": 0}, "keep_best"
    yield {"checkpoint.keep_best": "true", "data.validation_fraction": 0}, "keep_best"
    yield {"eval.patience": 3, "eval.every_steps": 0}, "patience"
    yield {"eval.patience": 1, "data.validation_fraction": 0.0}, "patience"
    for length in (257, 1024, 10000000):
        yield {"data.sequence_length": length}, "sequence_length"
    for script in ("model.script", "model.pretrained"):
        yield {script: "a.pt"}, script.rpartition(".")[2]
    for size, batch in ((24, 7), (10, 8), (1, 2), (999999999, 2), (64, 48)):
        yield {"training.global_batch_size": size, "training.batch_size": batch, "distributed.devices": 2}, \
            "global_batch_size"
    for size in (6, 20, 28):
        yield {"training.global_batch_size": size, "training.batch_size": 2, "distributed.devices": 1,
               "training.reproducible": "true"}, "global_batch_size"
    yield {"training.batch_size": 65536, "training.gradient_accumulation_steps": 65536}, "batch_size"
    yield {"training.gradient_accumulation_steps": 3, "training.reproducible": "true", "distributed.devices": 1}, \
        "gradient_accumulation_steps"
    for devices in (3, 6):
        yield {"distributed.devices": devices, "training.reproducible": "true"}, "devices"


def sizes():
    """Sizes of a model that do not fit each other: (family, {name: value}, the key that is named)."""
    for hidden, heads in ((128, 3), (100, 8), (1, 2), (128, 129)):
        yield "gpt2", {"hidden_size": hidden, "num_heads": heads}, "num_heads"
    yield "llama", {"hidden_size": 12, "num_heads": 4, "num_kv_heads": 4}, "num_heads"
    yield "llama", {"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads"
    yield "gpt2", {"num_kv_heads": 2}, "num_kv_heads"
    yield "gpt2", {"intermediate_size": 500}, "intermediate_size"
    yield "llama", {"dropout": 0.1}, "dropout"
    yield "gpt2", {"vocab_size": 256}, "vocab_size"
    yield "llama", {"vocab_size": 2}, "vocab_size"
    yield "gpt2", {"context_length": 127}, "sequence_length"


def contradiction(draw):
    made = []
    for values, key in together():
        file = ConfigFile()
        for path, value in values.items():
            file.set(path, value)
        made.append(Broken("contradiction", file.text(), {file.line(path) for path in values}, key))
    for family, values, key in sizes():
        standard = {"type": family, "vocab_size": 257, "context_length": 256, "hidden_size": 128, "num_layers": 2,
                    "num_heads": 4, **values}
        file = ConfigFile()
        begin = len(file.lines)
        file.lines += ["model_config_mine:", *(f"  {name}: {value}" for name, value in standard.items())]
        chosen = file.set("model.config", "model_config_mine")
        lines = {begin + 2 + list(standard).index(name) for name in values} | {chosen, file.line("data.sequence_length")}
        made.append(Broken("contradiction", file.text(), lines, key))
    yield from draw.sample(made, EACH)


def broken_configs():
    for kind in (misspelt, wrong_type, out_of_range, duplicate, bad_indentation, contradiction):
        yield from kind(random.Random(kind.__name__))
