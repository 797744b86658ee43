"""What tests of configurations share: the command, its schema, and the built-in config file to make others from."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FSDP = sys.argv[1]
OK, USAGE = 0, 2
# A rank's or node's variables, and settings, would change what the command does.
CLEAN = {name: value for name, value in os.environ.items()
         if not re.match(r"FSDP_SET_|(LOCAL_|NODE_|GROUP_)?(RANK|WORLD_SIZE)$|MASTER_|SLURM_|OMPI_|PMI_", name)}
CLEAN["CUDA_VISIBLE_DEVICES"] = ""


def schema_keys():
    """{path: JSON schema of the value}; keys of a model config have the section model_config."""
    schema = json.loads(subprocess.run([FSDP, "config", "--schema"], capture_output=True, text=True, check=True).stdout)
    keys = {}

    def walk(section, properties):
        for name, value in properties.items():
            if "properties" in value:
                walk(f"{section}{name}.", value["properties"])
            elif "patternProperties" not in value:
                keys[section + name] = value

    walk("", schema["properties"])
    walk("model_config.", schema["patternProperties"][next(iter(schema["patternProperties"]))]["properties"])
    return keys


def ways(key):
    """The schemas of which a value of the key fits one."""
    return key.get("anyOf", [key])


def types(key):
    return {way.get("type", "enum") for way in ways(key)} - {"null"}


class ConfigFile:
    """Lines of YAML in block style, with the place of every key. Built from the built-in example."""

    def __init__(self, text=None):
        if text is None:
            text = subprocess.run([FSDP, "config", "--example"], capture_output=True, text=True, check=True).stdout
        self.lines = text.splitlines()

    def text(self):
        return "\n".join(self.lines) + "\n"

    def copy(self):
        return ConfigFile(self.text())

    def places(self):
        """{path in the file: index of its line}."""
        places, open_sections = {}, []
        for index, line in enumerate(self.lines):
            found = re.match(r"( *)([\w.]+):", line)
            if not found:
                continue
            depth = len(found[1]) // 2
            open_sections = [*open_sections[:depth], found[2]]
            places[".".join(open_sections)] = index
        return places

    def path_of(self, key):
        """The path in the file of a key of the schema: in stage1, at top level, or in model_config_1B."""
        if key.startswith("model_config."):
            return key.replace("model_config.", "model_config_1B.", 1)
        if key.split(".")[0] in ("mode", "logging", "wandb"):
            return key
        return "training_stages.stage1." + key

    def set(self, key, value):
        """Sets a key of the schema to the text `value`. Returns its line, counted from 1."""
        places, path = self.places(), self.path_of(key)
        section, _, name = path.rpartition(".")
        indent = "  " * path.count(".")
        line = f"{indent}{name}: {value}"
        if path in places:
            self.lines[places[path]] = line
            return places[path] + 1
        if not section:
            self.lines.insert(0, line)
            return 1
        if section not in places:  # a section that the example leaves out
            self.lines.insert(places[section.rpartition(".")[0]] + 1, f"{indent[2:]}{section.rpartition('.')[2]}:")
            places = self.places()
        self.lines.insert(places[section] + 1, line)
        return places[section] + 2

    def remove(self, key):
        del self.lines[self.places()[self.path_of(key)]]

    def line(self, key):
        return self.places()[self.path_of(key)] + 1


class ConfigTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, *arguments, **variables):
        return subprocess.run([FSDP, *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=self.folder,
                              env={**CLEAN, **variables})

    def accepted(self, *arguments, **variables):
        """Runs the command. Returns what it printed to stdout and the notes on stderr."""
        done = self.start(*arguments, **variables)
        self.assertEqual(done.returncode, OK, done.stderr)
        return done.stdout, done.stderr

    def refused(self, *arguments, says=(), **variables):
        """The command ends with code 2, prints nothing to stdout, and `says` all of these on stderr."""
        done = self.start(*arguments, **variables)
        self.assertEqual(done.returncode, USAGE, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, done.stderr)
        return done.stderr

    def write(self, text, name="config.yaml"):
        (self.folder / name).write_text(text)
        return name

    def settings(self, *arguments, **variables):
        """{path: text of the value} of `config --print`."""
        return self.read_settings(self.accepted("config", "--print", *arguments, **variables)[0])

    def read_settings(self, text):
        found = {}
        for path, index in ConfigFile(text).places().items():
            value = re.sub(r"\s+# .*", "", ConfigFile(text).lines[index].split(":", 1)[1]).strip()
            path = re.sub(r"^training_stages\.\w+\.", "", re.sub(r"^model_config_[\w.]+?\.(?=\w+$)", "model_config.", path))
            if value:
                found[path] = value
        return found


def main():
    unittest.main(argv=[sys.argv[0]])
