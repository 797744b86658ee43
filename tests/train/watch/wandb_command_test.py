"""wandb_command_test.py FSDP: `fsdp train` refuses Weights & Biases at the start where it cannot work."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

FSDP = sys.argv[1]


class WandbCommand(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)

    def refused(self, path):
        """What the command says with this PATH."""
        done = subprocess.run([FSDP, "train", "--set", "wandb.use_wandb=true"], cwd=self.folder, capture_output=True,
                              text=True, env={"PATH": path})
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertFalse((self.folder / "runs").exists(), "nothing has begun")
        self.assertIn("flag --set wandb.use_wandb", done.stderr)
        return done.stderr

    def test_without_python(self):
        errors = self.refused("")
        self.assertIn("Type `apt-get install python3 python3-pip`", errors)
        self.assertIn("--set wandb.use_wandb=false", errors)

    def test_without_the_package(self):
        python = self.folder / "python3"
        python.write_text("#!/bin/sh\necho package >&2\nexit 1\n")
        python.chmod(0o755)
        self.assertIn("Type `python3 -m pip install wandb`", self.refused(str(self.folder)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
