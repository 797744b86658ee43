"""What tests of the `fsdp` command share: running it, checkpoints to run it on, and safetensors files."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FSDP, WRITE_CHECKPOINT = sys.argv[1:3]
LONGEST = 600 if os.environ.get("FSDP_TEST_SANITIZED") else 60  # seconds of a command
OK, DIFFERS, USAGE, CHECKPOINT, STORAGE = 0, 1, 2, 3, 7
BYTES = {"F64": 8, "F32": 4, "I64": 8, "BF16": 2, "F16": 2, "I8": 1, "BOOL": 1}


def write_checkpoint(run, step, ranks, *words):
    """The folder of a new checkpoint; write_checkpoint.cpp says what is in it."""
    made = subprocess.run([WRITE_CHECKPOINT, str(run), str(step), str(ranks), *words], check=True, text=True,
                          stdout=subprocess.PIPE)
    return Path(made.stdout.strip())


def sign_manifest(checkpoint, text):
    """Writes manifest.json with the hash it must end with. `text` is that of a JSON object."""
    (checkpoint / "manifest.json").write_text(text)
    subprocess.run([WRITE_CHECKPOINT, "sign", str(checkpoint / "manifest.json")], check=True)


def save_safetensors(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(one[2] for one in tensors.values()))


def load_safetensors(path):
    """{name: (dtype, shape, bytes)}."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (one["dtype"], one["shape"], raw[8 + size + one["data_offsets"][0]:8 + size + one["data_offsets"][1]])
            for name, one in header.items()}


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def fsdp(self, *arguments, expect=OK, **how):
        """Runs the command and returns what it printed to stdout, or to stderr where it is to fail."""
        done = subprocess.run([FSDP, *map(str, arguments)], capture_output=True, text=True, timeout=LONGEST, **how)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        if expect in (OK, DIFFERS):
            self.assertEqual(done.stderr, "")
            return done.stdout
        self.assertEqual(done.stdout, "")
        return done.stderr

    def json(self, *arguments, **how):
        return json.loads(self.fsdp(*arguments, "--json", **how))

    def refused(self, code, *arguments, says, **how):
        """The command ends with `code` and one line on stderr that has all the words."""
        text = self.fsdp(*arguments, expect=code, **how)
        if code != USAGE:
            self.assertTrue(text.startswith("fsdp: "), text)
            self.assertEqual(text.count("\n"), 1, text)
        for word in says if isinstance(says, (list, tuple)) else [says]:
            self.assertIn(word, text)

    def flip(self, path, offset):
        """Changes one byte; a negative offset counts from the end."""
        with open(path, "r+b") as file:
            file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0x10]))


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
