"""The code blocks of the pages: finds the pages, and reads the blocks and the markers before them.

Every block of README.md, CONTRIBUTING.md, docs/*.md, models/README.md and bench/README.md is checked by its language:

  cpp                    compiled (cpp_blocks.py), as the target doc_blocks
  python                 its syntax, and with PyTorch there, the names it takes from torch (check_blocks.py)
  cmake                  configured as a project that uses fsdp (cmake_blocks.py)
  json, yaml             parsed
  sh, bash or nothing    its commands exist, with their targets and options (commands.py)
  text, or nothing and
  no command             not checked: output and diagrams

A block needs no marker if its names are in context.h. Markers are HTML comments before the block, one per line or more:

  <!-- block: continues -->           the block sees what the previous C++ block of the page declares
  <!-- block: from FILE -->           the block quotes FILE of the tree, which is built: its lines are there, in order;
                                      a line of "..." stands for lines left out
  <!-- block: run --ranks 2 -->       the block is a whole program: it is run with these arguments, and exits with 0
  <!-- code: int64_t i = 0; -->       code before the block that readers need not see

In a C++ block a line of "..." stands for statements, and for (...) for a loop; `// ...` is a comment anyway.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES = {"cpp", "python", "cmake", "json", "yaml", "sh", "bash", "text", ""}
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*([\w+#-]*)")
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)


@dataclass
class Block:
    page: str  # relative to the root
    line: int  # of its first line of code, from 1
    language: str
    code: str
    hidden: list = field(default_factory=list)  # (line, code) of `code:` markers
    continues: bool = False
    quotes: str = ""  # the FILE of `from FILE`
    run: list = None  # arguments of `run`

    @property
    def where(self):
        return f"{self.page}:{self.line}"


class PageError(Exception):
    """A page that cannot be read; the message has page and line."""


def pages(root):
    """The pages under `root` that have code blocks for users, relative to it."""
    root = Path(root)
    found = [root / name for name in ("README.md", "CONTRIBUTING.md", "models/README.md", "bench/README.md")]
    found += sorted((root / "docs").glob("*.md"))
    return [path.relative_to(root).as_posix() for path in found if path.is_file()]


def _apply(block, markers, page):
    for line, text in markers:
        kind, _, rest = text.strip().partition(":")
        words = rest.split()
        if kind == "code":
            code = rest if rest.startswith("\n") else rest.lstrip()
            block.hidden.append((line, code))
        elif kind == "block" and words == ["continues"]:
            block.continues = True
        elif kind == "block" and words[:1] == ["from"] and len(words) == 2:
            block.quotes = words[1]
        elif kind == "block" and words[:1] == ["run"]:
            block.run = words[1:]
        elif kind in ("code", "block"):
            raise PageError(f"{page}:{line}: unknown marker {text.strip()!r}")


def read_blocks(root, page):
    """The blocks of a page, in order. Throws PageError for a fence that is not closed, or a marker without a block."""
    return parse_blocks((Path(root) / page).read_text(encoding="utf-8"), page)


def parse_blocks(text, page):
    lines = text.split("\n")
    blocks, markers, at = [], [], 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence:
            indent, ticks, language = fence.groups()
            end = at + 1
            while end < len(lines) and not (lines[end].strip().startswith(ticks) and not lines[end].strip("`~ ")):
                end += 1
            if end == len(lines):
                raise PageError(f"{page}:{at + 1}: the block is not closed")
            code = "\n".join(line[len(indent):] if line.startswith(indent) else line.lstrip()
                             for line in lines[at + 1:end])
            blocks.append(Block(page, at + 2, language, code))
            _apply(blocks[-1], markers, page)
            markers, at = [], end + 1
        elif lines[at].lstrip().startswith("<!--"):
            first, comment = at, lines[at]
            while "-->" not in comment and at + 1 < len(lines):
                at += 1
                comment += "\n" + lines[at]
            markers += [(first + 1, text) for text in COMMENT.findall(comment)]
            at += 1
        else:
            if lines[at].strip():
                _no_block(markers, page)
                markers = []
            at += 1
    _no_block(markers, page)
    return blocks


def _no_block(markers, page):
    for line, text in markers:
        if text.strip().partition(":")[0] in ("code", "block"):
            raise PageError(f"{page}:{line}: no block follows the marker {text.strip()!r}")


def quotes(block, text):
    """The first line of the block that is not in `text` where it should be; None if it quotes it."""
    source = [line.strip() for line in text.split("\n")]
    at = 0
    for fragment in _fragments(block.code):
        found = next((i for i in range(at, len(source) - len(fragment) + 1) if source[i:i + len(fragment)] == fragment),
                     None)
        if found is None:
            return next((line for line in fragment if line not in source), fragment[0])
        at = found + len(fragment)
    return None


def _fragments(code):
    fragment = []
    for line in code.split("\n"):
        if line.strip() in ("...", "// ..."):
            if fragment:
                yield fragment
            fragment = []
        else:
            fragment.append(line.strip())
    if fragment:
        yield fragment
