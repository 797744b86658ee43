"""ckpt_test.py FSDP WRITE_CHECKPOINT: `fsdp ckpt inspect`, `verify` and `diff`, their misuse and their exit codes."""

import json
import os
import pickle
import resource
import subprocess

from command import (CHECKPOINT, DIFFERS, FSDP, OK, STORAGE, USAGE, CommandTest, main, sign_manifest,
                     write_checkpoint)


class Usage(CommandTest):
    def test_help_is_there_for_every_command(self):
        self.assertIn("ckpt", self.fsdp("--help"))
        self.assertIn("Exit codes", self.fsdp("--help"))
        for command in ("inspect", "verify", "diff", "export", "import"):
            self.assertIn(command, self.fsdp("ckpt", "--help"))
            self.assertIn("--json", self.fsdp("ckpt", command, "--help"))
        self.assertIn("fsdp.cpp", self.fsdp("--version"))

    def test_arguments_that_make_no_sense(self):
        for arguments in ([], ["nothing"], ["ckpt"], ["ckpt", "look"], ["ckpt", "inspect"], ["ckpt", "diff", "one"],
                          ["ckpt", "inspect", "a", "b"], ["ckpt", "verify", "a", "--loud"],
                          ["ckpt", "export", "a", "b"], ["ckpt", "import", "a", "b"],
                          ["ckpt", "export", "--hf", "a", "b", "--max-file-bytes", "0"],
                          ["ckpt", "export", "--hf", "a", "b", "--max-file-bytes", "many"],
                          ["ckpt", "export", "--hf", "a", "b", "--max-file-bytes", "5XB"],
                          ["ckpt", "export", "--hf", "a", "b", "--max-file-bytes", "9999999TB"],
                          ["ckpt", "export", "--hf", "a", "b", "--config", "."],
                          ["ckpt", "import", "--hf", "a", "b", "--step", "-1"],
                          ["ckpt", "import", "--hf", "a", "b", "--step", "12 steps"],
                          ["ckpt", "import", "--hf", "a", "b", "--step", "99999999999999999999"]):
            words = self.fsdp(*arguments, expect=USAGE)
            self.assertNotEqual(words, "")
            self.assertNotRegex(words, "[0-9]{25}")

    def test_unknown_commands(self):
        words = self.fsdp("bogus", expect=USAGE)
        self.assertTrue(words.startswith("fsdp: 'bogus' is not a command of `fsdp`. Its commands are:\n  train "), words)
        self.assertTrue(words.endswith("\n  ckpt      Look into checkpoints, check, compare and convert them\n"
                                       "Run with --help for more information.\n"), words)
        for word, meant in {"bogus": None, "inspct": "inspect", "verfy": "verify", "--bogus": None}.items():
            words = self.fsdp("ckpt", word, "runs/a", expect=USAGE)
            self.assertIn(f"fsdp: '{word}' is not a command of `fsdp ckpt`.", words)
            self.assertEqual("Did you mean" in words, meant is not None, words)
            self.assertIn(f"Did you mean '{meant}'?" if meant else "`fsdp ckpt`. Its commands are:\n", words)
            for command in ("inspect", "verify", "diff", "export", "import"):
                self.assertRegex(words, f"\n  {command} +[A-Z]")
        self.assertRegex(self.fsdp("ckpt", expect=USAGE), "^fsdp: `fsdp ckpt` needs a command:\n  inspect +[A-Z]")
        self.assertIn("--help", self.fsdp("ckpt", "--help"))

    def test_numbers_are_refused_in_words(self):
        self.refused(USAGE, "ckpt", "import", "--hf", "a", "b", "--step", "99999999999999999999",
                     says="'99999999999999999999' is no step: a number from 0 to 9223372036854775807 is expected")
        self.refused(USAGE, "ckpt", "export", "--hf", "a", "b", "--max-file-bytes", "0", says=["'0' is no size", "500MB"])
        self.refused(USAGE, "ckpt", "export", "--hf", "a", "b", "--config", self.folder,
                     says="is a folder; a JSON file is expected")


class Inspect(CommandTest):
    def test_json_says_all_of_it(self):
        made = write_checkpoint(self.folder / "run", 120, 3, "extras")
        info = self.json("ckpt", "inspect", made)
        self.assertEqual([info["folder"], info["step"], info["world"], info["writer"]], [str(made), 120, 3, "a test"])
        self.assertEqual(len(info["id"]), 32)
        tensors = {one.pop("name"): one for one in info["tensors"]}
        self.assertEqual(tensors["transformer.h.0.attn.c_attn.bias"],
                         {"dtype": "F32", "shape": [24], "bytes": 96, "boxes": 3})
        self.assertEqual(tensors["conv.phase"], {"dtype": "C128", "shape": [3], "bytes": 48, "boxes": 3})
        self.assertEqual(tensors["conv.empty"], {"dtype": "F32", "shape": [4, 0], "bytes": 0, "boxes": 1})
        self.assertEqual(tensors["state.step"], {"dtype": "F32", "shape": [], "bytes": 4, "boxes": 1})
        self.assertEqual(info["tensor_bytes"], sum(one["bytes"] for one in tensors.values()))
        self.assertEqual(info["aliases"], {"lm_head.weight": "transformer.wte.weight"})
        self.assertEqual({one["name"]: one["bytes"] for one in info["files"]},
                         {path.name: path.stat().st_size for path in made.glob("*.safetensors")})
        self.assertEqual(info["file_bytes"], sum(one["bytes"] for one in info["files"]))
        self.assertEqual(info["run"]["model_config"]["n_head"], 2)

    def test_the_table_is_aligned(self):
        made = write_checkpoint(self.folder / "run", 7, 2)
        lines = self.fsdp("ckpt", "inspect", made).splitlines()
        for line in ("step        7", "saved by    2 ranks, a test"):
            self.assertIn(line, lines)
        head = next(line for line in lines if line.startswith("tensor "))
        row = next(line for line in lines if line.startswith("transformer.wte.weight"))
        self.assertEqual(head.index("dtype"), row.index("F32"))
        self.assertEqual(head.index("shape"), row.index("[11, 8]"))
        self.assertEqual(head.index("bytes") + 5, row.index("352") + 3)

    def test_a_run_stands_for_its_latest(self):
        for step in (5, 10):
            write_checkpoint(self.folder / "run", step, 1)
        self.assertEqual(self.json("ckpt", "inspect", self.folder / "run")["step"], 10)

    def test_names_cannot_move_the_cursor(self):
        made = write_checkpoint(self.folder / "run", 1, 1, "\033[2J")
        self.assertNotIn("\033", self.fsdp("ckpt", "inspect", made))
        self.refused(CHECKPOINT, "ckpt", "inspect", "\033[2J", says="?[2J does not exist")

    def test_a_full_disk_behind_stdout_is_an_error(self):
        made = write_checkpoint(self.folder / "run", 1, 1)
        for arguments in (["inspect", made], ["verify", made, "--json"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([FSDP, "ckpt", *map(str, arguments)], stdout=full, stderr=subprocess.PIPE,
                                      text=True)
            self.assertEqual(done.returncode, STORAGE)
            self.assertIn("No space left", done.stderr)


class NoCheckpoint(CommandTest):
    """What is no checkpoint is refused in words, by every command that reads one."""

    def refused_by_all(self, path, code, says):
        for arguments in (["inspect", path], ["verify", path], ["diff", path, path],
                          ["export", "--hf", path, self.folder / "out"]):
            self.refused(code, "ckpt", *arguments, says=says)
        self.assertFalse((self.folder / "out").exists())

    def test_missing(self):
        self.refused_by_all(self.folder / "nothing", CHECKPOINT, "nothing does not exist")

    def test_a_file(self):
        (self.folder / "notes.txt").write_text("not a checkpoint")
        self.refused_by_all(self.folder / "notes.txt", CHECKPOINT, "is a file; a checkpoint is a folder")

    def test_a_pickle(self):
        (self.folder / "model.pt").write_bytes(pickle.dumps({"weight": 1}))
        self.refused_by_all(self.folder / "model.pt", CHECKPOINT, ["it is a pickle", "safetensors.torch.save_file"])
        (self.folder / "model.zip").write_bytes(b"PK\3\4and so on")
        self.refused_by_all(self.folder / "model.zip", CHECKPOINT, "zip archive")

    def test_folders_of_others(self):
        other = self.folder / "other"
        other.mkdir()
        self.refused_by_all(other, CHECKPOINT, "it has no manifest.json")
        (other / ".metadata").write_bytes(b"\x80\4")
        self.refused_by_all(other, CHECKPOINT, "torch.distributed.checkpoint")
        self.refused_by_all(other, CHECKPOINT, "HuggingFaceStorageWriter")
        (other / "config.json").write_text("{}")
        self.refused_by_all(other, CHECKPOINT, ["Hugging Face folder without safetensors", "save_pretrained"])
        (other / "manifest.json").write_text('{"name": "a web page"}')
        self.refused_by_all(other, CHECKPOINT, "does not end with its hash")

    def test_a_manifest_that_cannot_be_read(self):
        (self.folder / "broken" / "manifest.json").mkdir(parents=True)
        self.refused_by_all(self.folder / "broken", STORAGE, ["cannot open", "not a regular file"])


class Damage(CommandTest):
    def setUp(self):
        super().setUp()
        self.made = write_checkpoint(self.folder / "run", 3, 2, "extras")
        self.shard = self.made / "shard-1.safetensors"

    def damaged(self, says):
        self.refused(CHECKPOINT, "ckpt", "verify", self.made, says=says)

    def test_whole(self):
        size = sum(path.stat().st_size for path in self.made.glob("*.safetensors"))
        count = len(self.json("ckpt", "inspect", self.made)["tensors"])
        self.assertEqual(self.json("ckpt", "verify", self.folder / "run"),
                         {"folder": str(self.made), "ok": True, "files": 4, "tensors": count, "bytes": size,
                          "hashed": True})
        self.assertIn(f"ok. {count} tensors in 4 files", self.fsdp("ckpt", "verify", self.made))

    def test_one_bit_anywhere(self):
        self.flip(self.shard, -1)
        self.damaged(["shard-1.safetensors is damaged: bytes", "and", "more tensors", "another checkpoint"])
        self.refused(CHECKPOINT, "ckpt", "diff", self.made, self.made, says="is damaged")
        self.fsdp("ckpt", "inspect", self.made)  # reads the manifest only
        self.flip(self.shard, -1)
        self.flip(self.shard, 20)
        self.damaged("its header is not the one saved")

    def test_cut_off(self):
        self.shard.write_bytes(self.shard.read_bytes()[:-1])
        self.damaged("it was saved with")

    def test_a_file_is_missing(self):
        self.shard.unlink()
        self.damaged(["is not whole", "shard-1.safetensors is missing", "Copy the folder again"])

    def test_manifest(self):
        path = self.made / "manifest.json"
        text = path.read_text()
        path.write_text(text.replace('"step": 3', '"step": 4'))
        self.damaged("does not have the hash it ends with")
        path.write_text(text[:-40])
        self.damaged("cut off")


class Harm(CommandTest):
    """Manifests that were made to take memory and time. 4 GiB of address space are more than enough to refuse them."""

    def setUp(self):
        super().setUp()
        self.made = write_checkpoint(self.folder / "run", 3, 2)
        self.manifest = json.loads((self.made / "manifest.json").read_text())

    def refuse(self, command, says):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        how = {} if os.environ.get("FSDP_TEST_SANITIZED") else {"preexec_fn": limit}
        self.refused(CHECKPOINT, "ckpt", command, self.made, says=says, **how)

    def test_a_header_of_8_GiB(self):
        self.manifest["files"][2]["header_bytes"] = (8 << 30) + 8
        os.truncate(self.made / "shard-1.safetensors", (8 << 30) + 8 + self.manifest["files"][2]["data_bytes"])
        sign_manifest(self.made, json.dumps(self.manifest))
        self.refuse("verify", "'header_bytes' is 8589934600, not an integer that is possible there: at most 100000008")

    def test_many_small_values(self):
        self.manifest["run"] = {"list": "HERE"}
        before, after = json.dumps(self.manifest).split('"HERE"')
        sign_manifest(self.made, before + "[" + "[]," * 60_000_000 + "[]]" + after)
        self.refuse("inspect", ["holds too many values", "made to harm"])


class Diff(CommandTest):
    def diff(self, first, second, expect):
        return self.json("ckpt", "diff", first, second, expect=expect)

    def test_the_number_of_ranks_does_not_matter(self):
        one = write_checkpoint(self.folder / "one", 3, 1, "extras", "rowmajor")
        for ranks in (2, 3, 7):
            many = write_checkpoint(self.folder / "many", ranks, ranks, "extras")
            found = self.diff(one, many, OK)
            self.assertTrue(found["same"])
            self.assertEqual(found["equal"], len(self.json("ckpt", "inspect", one)["tensors"]))
            self.assertEqual([found["first"], found["second"]], [str(one), str(many)])
            self.assertEqual(found["run_keys"], ["words"])
        self.assertIn("the tensors are the same", self.fsdp("ckpt", "diff", one, many))

    def test_values(self):
        first = write_checkpoint(self.folder / "first", 1, 2, "extras")
        second = write_checkpoint(self.folder / "second", 1, 3, "extras", "changed")
        found = self.diff(first, second, DIFFERS)
        self.assertFalse(found["same"])
        # Elements 0, 100 and 200 of 256 grew by 0.25, 0.5 and 0.75.
        self.assertEqual(found["changed"], [
            {"name": "conv.steps", "dtype": "I64", "elements": 7, "of": 7},
            {"name": "transformer.h.0.mlp.c_fc.weight", "dtype": "F32", "elements": 3, "of": 256, "largest": 0.75}])
        text = self.fsdp("ckpt", "diff", first, second, expect=DIFFERS)
        for word in ("transformer.h.0.mlp.c_fc.weight", "0.75", "the tensors differ"):
            self.assertIn(word, text)

    def test_names_and_kinds(self):
        first = write_checkpoint(self.folder / "first", 1, 2, "extras")
        second = write_checkpoint(self.folder / "second", 1, 2, "bf16", "untied")
        found = self.diff(first, second, DIFFERS)
        self.assertEqual(found["only_in_first"], ["conv.empty", "conv.phase", "conv.steps", "conv.weight"])
        self.assertEqual(found["only_in_second"], ["state.lm_head.weight.exp_avg"])
        kinds = {one["name"]: (one["first"], one["second"]) for one in found["mismatched"]}
        self.assertEqual(kinds["transformer.wpe.weight"],
                         ({"dtype": "F32", "shape": [6, 8]}, {"dtype": "BF16", "shape": [6, 8]}))
        self.assertIn("lm_head.weight", kinds)  # tied in one of them
        self.assertIn("BF16 [6, 8]", self.fsdp("ckpt", "diff", first, second, expect=DIFFERS))

    def test_tied_under_either_name(self):
        first = write_checkpoint(self.folder / "first", 1, 1)
        second = write_checkpoint(self.folder / "second", 1, 1, "renamed")
        names = {one["name"] for one in self.diff(first, second, DIFFERS)["changed"]}
        self.assertEqual(names, {"lm_head.weight"})  # its values depend on the length of its name; listed once


if __name__ == "__main__":
    main()
