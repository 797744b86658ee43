"""config_command_test.py FSDP ROOT: `fsdp config`, and what `fsdp train --dry-run` makes of files, flags and environment."""

import json
import re
import subprocess
import sys
from pathlib import Path

from config_files import CLEAN, FSDP, ConfigFile, ConfigTest, main, schema_keys

ROOT = Path(sys.argv[2])
NODES = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
NO_WORKER = {"FSDP_WORKER": "/bin/true"}  # the plan of units is tested with the trainer
TINY = "model: {config: model_config_tiny_gpt2}\n"


class WhichFile(ConfigTest):
    def test_without_a_file_the_built_in_one(self):
        text, notes = self.accepted("config", "--print")
        self.assertIn("there is no config.yaml here, so it is the one built in", notes)
        self.assertIn("batch_size: 8    ", text)

    def test_config_yaml_of_this_folder(self):
        self.write(TINY + "training: {batch_size: 3}\n")
        text, notes = self.accepted("config", "--print")
        self.assertIn("config: config.yaml of this folder", notes)
        self.assertRegex(text, r"batch_size: 3 +# config\.yaml:2")

    def test_config_names_another(self):
        self.write("training: {batch_size: 0}\n")
        self.write(TINY + "training: {batch_size: 3}\n", "other.yaml")
        self.assertEqual(self.settings("--config", "other.yaml")["training.batch_size"], "3")

    def test_a_file_that_cannot_be_read(self):
        (self.folder / "folder").mkdir()
        for name, says in (("none.yaml", "No such file"), ("folder", "Is a directory"), ("", "found an empty text")):
            self.refused("config", "--print", "--config", name, says=says)
            self.refused("train", "--dry-run", "--config", name, says=says)

    def test_the_example_is_a_file_to_start_from(self):
        text = self.accepted("config", "--example")[0]
        without_file = self.settings()
        self.write(text)
        self.assertEqual(self.settings(), without_file)


class WhoWins(ConfigTest):
    def test_in_order(self):
        self.write(TINY + "distributed: {timeout: 1}\ntraining_stages: {s: {distributed: {timeout: 2}}}\n"
                   "distributed_examples: {p: {timeout: 3}}\n")
        preset, flag = ("--fsdp-config", "p"), ("--set", "distributed.timeout=5")
        variable = {"FSDP_SET_distributed__timeout": "4"}
        key = "distributed.timeout"
        self.assertEqual(self.settings()[key], "2")
        for arguments, variables, won, lost in (
                (preset, {}, "3 (config.yaml:4)", "2 (config.yaml:3)"),
                (preset, variable, "4 (environment FSDP_SET_distributed__timeout)", "3 (config.yaml:4)"),
                (preset + flag, variable, f"5 (flag --set {key})", "4 (environment FSDP_SET_distributed__timeout)")):
            text, notes = self.accepted("config", "--print", *arguments, **variables)
            self.assertEqual(self.read_settings(text)[key], won[0])
            self.assertEqual([line for line in notes.splitlines() if key in line],
                             [f"fsdp: {key}: {won} instead of {lost}"])
            self.assertEqual(notes, self.accepted("train", "--dry-run", *arguments, **variables, **NO_WORKER)[1])

    def test_every_flag(self):
        for flag, value, key in (("--mode", "smoke", "mode"), ("--devices", "3", "distributed.devices"),
                                 ("--num-nodes", "2", "distributed.num_nodes"),
                                 ("--precision", "bf16-mixed", "training.precision"),
                                 ("--model-config", "model_config_tiny_llama", "model.config")):
            text, notes = self.accepted("config", "--print", flag, value)
            self.assertRegex(text, rf"\b{key.rpartition('.')[2]}: \"?{value}\"? +# flag {flag}")
            if key != "mode":
                self.assertRegex(notes, rf"{key}: {value} \(flag {flag}\) instead of \w+ \(built-in config:\d+\)")
        self.assertEqual(self.settings("--stage", "stage2")["training.max_steps"], "100")
        self.assertEqual(self.settings("--fsdp-config", "large_scale_fsdp")["distributed.num_nodes"], "8")

    def test_wrong_flags(self):
        for flag, value, says in (("--mode", "prod", "'production' or 'smoke'"), ("--devices", "many", "an integer from 1"),
                                  ("--devices", "0", "an integer from 1"), ("--num-nodes", "-1", "an integer from 1"),
                                  ("--precision", "fp32", "'32', 'bf16-mixed'"), ("--stage", "stage3", "stage1 or stage2"),
                                  ("--model-config", "model_config_1.8B", "did you mean 'model_config_1.7B'?"),
                                  ("--fsdp-config", "multi_nod_fsdp", "did you mean 'multi_node_fsdp'?"),
                                  ("--set", "training.batchsize=4", "did you mean 'training.batch_size'?")):
            for command in (("config", "--print"), ("train", "--dry-run")):
                self.refused(*command, flag, value, says=[f"flag {flag}", says])

    def test_set_reaches_every_key(self):
        """Every key is set at once, to its own value: nothing but the origin changes."""
        before = self.settings()
        arguments = []
        for key in schema_keys():
            if key in before:
                arguments += ["--set", f"{key}={before[key].strip(chr(34))}"]
        text, _ = self.accepted("config", "--print", *arguments)
        self.assertEqual(self.read_settings(text), before)
        self.assertGreater(text.count("# flag --set "), 60)
        self.assertNotIn("# default", text)


class TheLinesOfTheDocs(ConfigTest):
    """The five command lines that users type."""

    def dry_run(self, line, **variables):
        return self.accepted(*line.split()[1:], "--dry-run", **variables, **NO_WORKER)

    def test_single_node(self):
        text, notes = self.dry_run("fsdp train --fsdp-config single_node_fsdp --devices 4")
        self.assertEqual(self.read_settings(text)["distributed.devices"], "4")
        self.assertIn("distributed.devices: 4 (flag --devices) instead of 8 (built-in config:", notes)
        self.assertIn("this machine has no GPU, so they are 4 CPU ranks", notes)

    def test_several_nodes(self):
        for line, nodes in (("fsdp train --fsdp-config multi_node_fsdp --num-nodes 2 --devices 8", 2),
                            ("fsdp train --fsdp-config large_scale_fsdp --num-nodes 4 --devices 8", 4),
                            ("fsdp train --stage stage2 --fsdp-config multi_node_fsdp --devices 8", 4)):
            text, notes = self.dry_run(line, **NODES)
            self.assertEqual(self.read_settings(text)["distributed.num_nodes"], str(nodes))
            self.assertIn("cpu_offload true", notes)
            self.assertIn("changes nothing on CPU ranks", notes)

    def test_without_node_rank_the_lines_to_type(self):
        line = "train --fsdp-config multi_node_fsdp --num-nodes 2 --devices 8 --dry-run"
        says = [rf"MASTER_ADDR=\S+ MASTER_PORT=\d+ NODE_RANK={node} fsdp {line}\n" for node in (0, 1)]
        text = self.refused(*line.split(), says="2 nodes, but NODE_RANK is not set")
        for pattern in says:
            self.assertRegex(text, pattern)
        self.refused(*line.split(), says="without LOCAL_RANK", RANK="1")

    def test_production(self):
        text, notes = self.dry_run("fsdp train --mode production --stage stage1 --model-config model_config_1.7B --devices 8 "
                                   "--precision bf16-mixed")
        settings = self.read_settings(text)
        self.assertEqual(settings["model_config.num_layers"], "24")
        self.assertEqual(settings["training.precision"], 'bf16-mixed')
        self.assertEqual(settings["training.global_batch_size"], "64")

    def test_nothing_is_started_or_written(self):
        worker = self.folder / "worker"
        worker.write_text(f"#!/bin/sh\necho \"$@\" >>{self.folder}/started\n")
        worker.chmod(0o755)
        self.accepted("train", "--dry-run", FSDP_WORKER=str(worker))
        self.assertRegex((self.folder / "started").read_text(), r"^plan /dev/fd/\d+\n$")
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"worker", "started"})


class Explained(ConfigTest):
    def test_every_key(self):
        text = self.accepted("config", "--explain")[0]
        listed = set(re.findall(r"^  ([a-z_]+(?:\.[a-z0-9_]+)*)  ", text, re.MULTILINE))
        self.assertEqual(listed, set(schema_keys()))
        for key in sorted(listed)[::9]:
            one = self.accepted("config", "--explain", key)[0]
            self.assertTrue(one.startswith(key + "\n"), one)

    def test_sections_and_unknown_names(self):
        self.assertNotIn("training.", self.accepted("config", "--explain", "data")[0].replace("training.seed", ""))
        self.refused("config", "--explain", "dat.train", says="did you mean 'data.train'?")

    def test_schema_has_help_and_defaults(self):
        keys = schema_keys()
        self.assertEqual(keys["training.batch_size"]["default"], 8)
        self.assertEqual(keys["training.batch_size"]["minimum"], 1)
        for path, key in keys.items():
            self.assertTrue(key["description"], path)

    def test_one_way_at_a_time(self):
        self.refused("config", says="")
        self.refused("config", "--print", "--schema", says="")

    def test_the_page_has_every_key(self):
        """The tables of docs/configuration.md are what `fsdp config --explain --markdown` prints."""
        page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
        tables = self.accepted("config", "--explain", "--markdown")[0]
        self.assertGreater(tables.count("\n| `"), 80)
        self.assertIn(tables.strip(), page, "docs/configuration.md has other tables than `fsdp config --explain --markdown` prints")


class AsWritten(ConfigTest):
    def test_a_resolved_config_resolves_to_itself(self):
        for arguments in ((), ("--stage", "stage2"), ("--fsdp-config", "large_scale_fsdp"), ("--mode", "smoke")):
            text = self.accepted("config", "--print", *arguments)[0]
            self.write(text, "again.yaml")
            self.assertEqual(self.settings("--config", "again.yaml"), self.read_settings(text))

    def test_schema_is_json(self):
        schema = json.loads(self.accepted("config", "--schema")[0])
        self.assertEqual(schema["$schema"], "https://json-schema.org/draft/2020-12/schema")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([FSDP, "config", "--print"], stdout=full, stderr=subprocess.PIPE, cwd=self.folder, env=CLEAN)
        self.assertEqual(done.returncode, 7)

    def test_terminal_codes_of_a_file_are_not_printed(self):
        self.write('"tra\\x1b[31mining": 4\n')
        self.assertNotIn("\x1b", self.refused("config", "--print"))


if __name__ == "__main__":
    main()
