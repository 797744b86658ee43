"""config_schema.py FSDP: files that the command accepts fit its JSON schema, and broken ones do not, as `jsonschema` sees it."""

import json
import sys
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train" / "config"))
from broken_configs import broken_configs  # noqa: E402
from config_files import ConfigFile, ConfigTest, main, schema_keys  # noqa: E402

# What a schema of one value cannot see, and what YAML's own parser refuses.
UNSEEN = {"contradiction", "duplicate", "bad indentation"}


class SchemaTest(ConfigTest):
    def setUp(self):
        super().setUp()
        schema = json.loads(self.accepted("config", "--schema")[0])
        Draft202012Validator.check_schema(schema)
        self.validator = Draft202012Validator(schema)

    def problems(self, text):
        return [f"{error.json_path}: {error.message}" for error in self.validator.iter_errors(yaml.safe_load(text))]

    def test_the_example_and_the_resolved_ones_fit(self):
        self.assertEqual(self.problems(self.accepted("config", "--example")[0]), [])
        for arguments in ((), ("--stage", "stage2"), ("--mode", "smoke"), ("--fsdp-config", "large_scale_fsdp"),
                          ("--model-config", "model_config_8B"), ("--set", "data.train=[a, b]"),
                          ("--set", "wandb.tags=[x]", "--precision", "16-mixed")):
            self.assertEqual(self.problems(self.accepted("config", "--print", *arguments)[0]), [], arguments)

    def test_broken_ones_do_not(self):
        seen = 0
        for broken in broken_configs():
            if broken.kind in UNSEEN:
                continue
            value = next((line for index, line in enumerate(broken.text.splitlines(), 1) if index in broken.lines), "")
            if yaml.safe_load(broken.text) is not None and self.differs_by_reader(value):
                continue
            seen += 1
            self.assertNotEqual(self.problems(broken.text), [], f"{broken.kind}: {value}")
        self.assertGreater(seen, 100)

    def differs_by_reader(self, line):
        """PyYAML reads these as numbers or as true and false; the command refuses them."""
        return line.split(": ", 1)[-1].strip() in ("yes", "off", "08", "0x10", "1_000", "nan", ".inf", "inf")

    def test_every_key_stands_in_it_with_its_default(self):
        for path, key in schema_keys().items():
            if "default" in key:
                Draft202012Validator(key).validate(key["default"])
            self.assertTrue(list(Draft202012Validator(key).iter_errors({"a": "section"})), path)
            file = ConfigFile()
            file.set(path, "{a: section}")
            self.assertNotEqual(self.problems(file.text()), [], path)


if __name__ == "__main__":
    main()
