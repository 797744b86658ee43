"""data_command_test.py FSDP none: `fsdp data prepare` and `fsdp data inspect`, their files and their errors."""

import json
import os
import struct
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "app"))
from command import STORAGE, USAGE, CommandTest, main  # noqa: E402

DATA = USAGE  # data that cannot be trained on ends with the code of wrong arguments
END = 256


def header(path):
    return struct.unpack("<256i", path.read_bytes()[:1024])


def tokens_of(path, kind="H"):
    tokens = array(kind)
    tokens.frombytes(path.read_bytes()[1024:])
    return tokens.tolist()


def text_of(tokens):
    return "".join("|" if token == END else chr(token) for token in tokens)


class DataTest(CommandTest):
    def file(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def setUp(self):
        super().setUp()
        self.out = self.folder / "out.bin"

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())


class Prepare(DataTest):
    def test_writes_the_format_of_llm_c(self):
        one, two = self.file("a.txt", "one\n"), self.file("more/b.md", "two")
        self.file("more/c.bin", "not read")
        printed = self.fsdp("data", "prepare", one, two.parent, "--out", self.out)
        self.assertEqual(header(self.out), (20240520, 1, 9) + 253 * (0,))
        self.assertEqual(text_of(tokens_of(self.out)), "one\n|two|")
        self.assertEqual(printed, "2 documents, 7 bytes, tokenizer byte of 257 tokens\n"
                                  f"{self.out}: 9 tokens (uint16)\n")

    def test_json_says_the_same(self):
        self.file("a.jsonl", '{"prompt": "Q", "completion": "A"}\n{"text": ""}\n')
        said = self.json("data", "prepare", self.folder / "*.jsonl", "--out", self.out)
        self.assertEqual(said, {
            "train": {"file": str(self.out), "type": "uint16", "tokens": 3, "counted": 2}, "tokenizer": "byte",
            "vocab_size": 257, "documents": 1, "validation_documents": 0, "empty_documents": 1, "bytes": 48})

    def test_prompts_get_a_mask(self):
        records = self.file("a.jsonl", '{"prompt": "Q", "completion": "A"}\n')
        mask = Path(f"{self.out}.mask")
        printed = self.fsdp("data", "prepare", records, "--out", self.out)
        self.assertEqual(header(self.out)[3], 1)
        self.assertEqual(mask.read_bytes(), b"\0\1\1")
        self.assertIn("3 tokens (uint16), of which 2 count in the loss", printed)
        self.fsdp("data", "prepare", records, "--out", self.out, "--whole-loss")
        self.assertEqual(header(self.out)[3], 0)
        self.assertEqual(self.names(), ["a.jsonl", "out.bin"])

    def test_keys_and_files_of_jsonl(self):
        records = self.file("a.log", '{"body": "x", "text": "y"}\n')
        for words, text in (([], '{"body": "x", "text": "y"}\n|'), (["--jsonl"], "y|"),
                            (["--jsonl", "--text-key", "body"], "x|")):
            self.fsdp("data", "prepare", records, "--out", self.out, *words)
            self.assertEqual(text_of(tokens_of(self.out)), text)

    def test_a_part_for_validation(self):
        lines = "".join(f"{i}\n" for i in range(100, 200))
        text, validation = self.file("a.txt", lines), self.folder / "val.bin"
        printed = self.fsdp("data", "prepare", text, "--out", self.out, "--validation-out", validation,
                            "--validation-fraction", "0.1")
        train, rest = text_of(tokens_of(self.out)), text_of(tokens_of(validation))
        self.assertEqual(train[:-1] + rest[:-1], lines)
        self.assertEqual(len(rest), 37)
        self.assertIn(f"{validation}: 37 tokens (uint16)\n", printed)

    def test_a_tokenizer_file(self):
        letters = {byte: chr(byte) for byte in range(256)}
        others = [byte for byte in range(256) if not (33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte)]
        letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
        vocab = {letter: byte for byte, letter in letters.items()} | {"ab": 256, "far": 70000}
        path = self.file("tokenizer/tokenizer.json", json.dumps({
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}))
        said = self.json("data", "prepare", self.file("a.txt", "ab\u00e9"), "--out", self.out, "--tokenizer", path.parent)
        self.assertEqual(said["vocab_size"], 70001)
        self.assertEqual(header(self.out)[:3], (20240801, 7, 3))
        self.assertEqual(tokens_of(self.out, "I"), [256, 0xC3, 0xA9])  # this vocabulary has no end of text
        shown = self.fsdp("data", "inspect", self.out, "--tokenizer", path)
        self.assertRegex(shown, 'begins with +"ab\u00e9"')

    def test_broken_texts(self):
        lines = self.file("a.jsonl", '{"text": "a"}\n{"text": \n')
        self.refused(DATA, "data", "prepare", lines, "--out", self.out, says=[f"{lines}:2: not JSON"])
        empty = self.file("e.txt", "")
        self.refused(DATA, "data", "prepare", empty, "--out", self.out, says=["no text is there for training"])
        self.refused(DATA, "data", "prepare", self.folder / "none", "--out", self.out, says="no such file or folder")
        self.refused(DATA, "data", "prepare", empty, "--out", self.out, "--tokenizer", "gpt2", says="no tokenizer 'gpt2'")
        self.refused(DATA, "data", "prepare", "x" * 5000, "--out", self.out, says="no such file or folder")
        self.assertEqual(self.names(), ["a.jsonl", "e.txt"])  # no half a token file is left

    def test_outputs_that_would_overwrite(self):
        text = self.file("a.txt", "text")
        (self.folder / "more").mkdir()
        prepare = ["data", "prepare", text, "--out"]
        self.refused(DATA, *prepare, self.folder / "more/../a.txt", says="read and written")
        os.link(text, self.folder / "link")
        self.refused(DATA, *prepare, self.folder / "link", says="read and written")
        self.refused(DATA, *prepare, self.folder, says="this is a folder")
        self.refused(DATA, *prepare, self.file("notes", "mine"), says="exists and is no token file")
        self.refused(DATA, *prepare, self.out, "--validation-out", self.folder / "more/../out.bin", "--validation-fraction",
                     "0.5", says="are the same file")
        self.refused(DATA, *prepare, self.out, "--validation-fraction", "0.5", says="needs --validation-out")
        self.refused(STORAGE, *prepare, self.folder / "none/out.bin", says="No such file or directory")
        self.refused(STORAGE, *prepare, "x" * 5000, says="too long")
        self.assertEqual(text.read_text(), "text")
        self.fsdp(*prepare, self.out)
        self.fsdp(*prepare, self.out)  # a token file may be replaced
        self.refused(DATA, "data", "prepare", self.out, "--out", self.folder / "b.bin", says="this is a token file")

    def test_a_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        self.refused(STORAGE, "data", "prepare", self.file("a.txt", "x"), "--out", "/dev/full", says="/dev/full")

    def test_usage(self):
        for words in ([], ["--out", "x"], ["a.txt"], ["a.txt", "--out", "x", "--validation-fraction", "1"],
                      ["a.txt", "--out", "x", "--loud"]):
            self.fsdp("data", "prepare", *words, expect=USAGE)
        self.assertRegex(self.fsdp("data", expect=USAGE), "needs a command:\n  prepare +[A-Z].*\n  inspect +[A-Z]")


class Inspect(DataTest):
    def test_nano_gpt_files_need_their_type(self):
        raw = self.file("train.bin", struct.pack("<4H", 5, 6, 50256, 7))
        self.refused(DATA, "data", "inspect", raw, says=[f"{raw}:0: no header", "--type"])
        said = self.json("data", "inspect", raw, "--type", "uint16")
        self.assertEqual(said, {"file": str(raw), "format": "tokens without a header, as of nanoGPT", "type": "uint16",
                                "tokens": 4, "largest_token": 50256, "counted": 4})
        self.assertEqual(self.json("data", "inspect", raw, "--type", "uint32")["tokens"], 2)

    def test_shows_masks_and_text(self):
        records = self.file("a.jsonl", '{"prompt": "Q", "completion": "\\u00e9\\u001b"}\n')
        self.fsdp("data", "prepare", records, "--out", self.out)
        shown = self.fsdp("data", "inspect", self.out, "--tokenizer", "byte")
        self.assertRegex(shown, r"format +llm\.c, uint16\ntokens +5\nlargest token +256\ncount in the loss +4\n")
        self.assertIn(r'"Q' + "\u00e9" + r'\u001b<|endoftext|>"', shown)  # nothing that a terminal obeys

    def test_finds_damage(self):
        self.fsdp("data", "prepare", self.file("a.txt", "x" * 3000), "--out", self.out)
        whole = self.out.read_bytes()
        self.out.write_bytes(whole[:-3])
        self.refused(DATA, "data", "inspect", self.out, says=[f"{self.out}:8: ", "3001 tokens", "5999 bytes follow"])
        self.out.write_bytes(whole)
        self.flip(self.out, 1024 + 2 * 2500 + 1)
        self.refused(DATA, "data", "inspect", self.out, "--tokenizer", "byte", says=f"{self.out}:6024: token 4216 ")
        self.assertEqual(self.json("data", "inspect", self.out)["largest_token"], 4216)
        self.refused(DATA, "data", "inspect", self.file("e.bin", ""), says=":0: the file is empty")
        self.refused(STORAGE, "data", "inspect", self.folder / "none", says="No such file")
        self.refused(STORAGE, "data", "inspect", self.folder, says="it is a folder")

    def test_a_file_without_tokens(self):
        empty = self.file("z.bin", struct.pack("<256i", 20240520, 1, *254 * [0]))
        self.assertEqual(self.json("data", "inspect", empty, "--tokenizer", "byte")["tokens"], 0)


if __name__ == "__main__":
    main()
