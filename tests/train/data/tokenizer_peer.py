"""tokenizer_peer.py ENCODE_TEXTS ROOT: our tokens equal those of `tokenizers` and `tiktoken`, token by token.

The vocabularies are trained here, on the documentation in ROOT. Nothing is downloaded.
"""

import base64
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from pathlib import Path

import tiktoken
import tiktoken_ext.openai_public as openai
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

ENCODE_TEXTS, ROOT = sys.argv[1], Path(sys.argv[2])
PAGES = [page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]]
END = "<|endoftext|>"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"])

ODD = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", "Hello, world!", "I'll we've DON'T it's 'S 'Re x'll' 'quoted'",
    "don\u2019t \u2018quote\u2019 it\u017f '\u017f '\u212a I'M you'D", "1 12 123 1234 12345 \u0663\u0664\u0665 \u2167 \u00bd \u2460 3.14e-10",
    "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466 \U0001F44D\U0001F3FD \U0001F1E9\U0001F1EA \u2764\ufe0f",
    "e\u0301 \u00e9 a\u0308\u0323 Z\u0351\u036b\u0343 \u0915\u094d\u0937\u093f \u0e01\u0e33\u0e25\u0e31\u0e07",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202bRTL\u202c \u200f\u200e",
    "\u6f22\u5b57\u304b\u306a\u30ab\u30ca \ud55c\uad6d\uc5b4 \u3000\u5168\u89d2\uff21\uff22\uff11\uff12",
    "".join(map(chr, range(0x20))) + "\x7f\x80\x85\x9f", "a\x00b\x1bc", " " * 100 + "x" + " " * 37, "x" + "\t" * 9 + "y\n",
    "a\r\n\r\nb\r\rc\n\n\n  d \n e  \n", "end with spaces   ", "  \n  ", "x \n\n  ", "\n \n \n", " \u00a0 \u2003\u2009x\u202f\u205f\u3000y",
    "\u180e\u200b\ufeff\u2060 zero\u200bwidth", "\ufffd \U0010ffff \ue000 \ufdd0", "camelCaseString HTMLParser \u01c5 \u02b0 \u00aa\u00ba iPhone",
    "path/to//file.txt\n///\r\n", "a" * 300, "ab" * 200, "!?" * 120, "\u6f22" * 100, "#" * 81 + "\n", "0" * 77,
    END, "a" + END + "b " + END + END + "\n", "<|endoftext", "<|end" + END + "|>", "<tool> x<tool>y",
]


def corpus():
    pool = list("aZ\u00e9\u00df19 \t\n\r'\"!.,-_/\\#<|>") + ["  ", "\r\n", "'s", "'LL", "\u0301", "\u200d", "\U0001F600", "\u05d0",
                                                      "\u4e2d", "\u00a0", "\u2028", "\u0663", "\u01c5", "\u02b0", "\u0e33", END]
    draw = random.Random(1)
    # Characters that have long been assigned: all libraries know their properties.
    old = [char for char in map(chr, range(0x110000)) if unicodedata.ucd_3_2_0.category(char) not in ("Cn", "Cs", "Co")]
    return (ODD + ["".join(draw.choices(pool, k=draw.randrange(1, 40))) for _ in range(3000)]
            + ["".join(draw.choices(old, k=30)) for _ in range(1000)]
            + [char.join("a1 ") for char in draw.sample(old, 2000)] + PAGES)


CORPUS = corpus()


def encoded(tokenizer, specials="as_text", *words):
    lines = "".join(json.dumps(text) + "\n" for text in CORPUS)
    done = subprocess.run([ENCODE_TEXTS, str(tokenizer), specials, *words], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def train(pre_tokenizer, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(PAGES, trainers.BpeTrainer(
        vocab_size=2500, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def byte_level(**how):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **how})


def split_then_bytes(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert=invert),
                                    byte_level(use_regex=False)])


class PeerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def compare(self, ours, theirs):
        self.assertEqual(len(ours), len(CORPUS))
        for text, mine, peer in zip(CORPUS, ours, theirs):
            self.assertEqual(mine, peer, repr(text[:200]))


class TokenizersTest(PeerTest):
    def check(self, tokenizer, *words):
        path = self.folder / "tokenizer.json"
        tokenizer.save(str(path))
        self.compare(encoded(path, "as_tokens", *words), [tokenizer.encode(text).ids for text in CORPUS])
        tokenizer.encode_special_tokens = True
        self.compare(encoded(self.folder, "as_text", *words), [tokenizer.encode(text).ids for text in CORPUS])

    def test_gpt2(self):
        tokenizer = train(byte_level())
        self.check(tokenizer)
        pair = self.folder / "pair"
        pair.mkdir()
        tokenizer.model.save(str(pair))
        theirs = [tokenizer.encode(text).ids for text in CORPUS]  # special tokens as text, since check()
        self.compare(encoded(pair), theirs)
        self.compare(encoded(pair / "vocab.json"), theirs)

    def test_llama3(self):
        self.check(train(split_then_bytes(LLAMA3), ignore_merges=True))

    def test_llama3_with_merges(self):
        self.check(train(split_then_bytes(LLAMA3)))

    def test_o200k_pattern(self):
        self.check(train(split_then_bytes(O200K)))

    def test_removed_and_inverted(self):
        self.check(train(split_then_bytes(LLAMA3, "removed", invert=True)))

    def test_space_in_front(self):
        self.check(train(byte_level(add_prefix_space=True)), "space")

    def test_digits(self):
        self.check(train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])))
        self.check(train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), byte_level()])))

    def test_split_by_string(self):
        self.check(train(pre_tokenizers.Sequence([pre_tokenizers.Split("a.", "isolated"), byte_level()])))

    def test_added_tokens(self):
        tokenizer = train(byte_level())
        tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("<|end", normalized=False), "<tool> x"])
        self.check(tokenizer)


def mergeable_ranks(size, hole=None):
    """Ranks of bytes and of merges trained on the documentation. The others, to reach `size`, are in no text."""
    model = json.loads(train(byte_level()).to_str())["model"]
    letters = {letter: byte for byte, letter in openai_letters().items()}
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in model["merges"]:
        tokens.append(bytes(letters[letter] for letter in left + right))
    tokens = list(dict.fromkeys(tokens))[:size]
    tokens += [b"\xff" + number.to_bytes(4, "big") for number in range(size - len(tokens))]
    numbers = [number for number in range(size + 1) if number != hole]
    return dict(zip(tokens, numbers))


def openai_letters():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


class TiktokenTest(PeerTest):
    def check(self, encoding, ranks):
        path = self.folder / "ranks.tiktoken"
        path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
        self.compare(encoded(path), [encoding.encode_ordinary(text) for text in CORPUS])
        self.compare(encoded(path, "as_tokens"), [encoding.encode(text, allowed_special="all") for text in CORPUS])

    def check_published(self, name, size, hole=None):
        ranks = mergeable_ranks(size, hole)
        loader, openai.load_tiktoken_bpe = openai.load_tiktoken_bpe, lambda *_, **__: ranks
        try:
            encoding = tiktoken.Encoding(**getattr(openai, name)())
        finally:
            openai.load_tiktoken_bpe = loader
        self.check(encoding, ranks)

    def test_r50k(self):
        self.check_published("r50k_base", 50256)

    def test_p50k(self):
        self.check_published("p50k_base", 50280, hole=50256)

    def test_cl100k(self):
        self.check_published("cl100k_base", 100256)

    def test_o200k(self):
        self.check_published("o200k_base", 199998)

    def test_llama3(self):
        ranks = mergeable_ranks(128000)
        special = {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}
        self.check(tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens=special), ranks)

    def test_own_vocabulary(self):
        ranks = mergeable_ranks(1500)
        self.check(tiktoken.Encoding("own", pat_str=openai.r50k_pat_str, mergeable_ranks=ranks,
                                     special_tokens={END: 1500}), ranks)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
