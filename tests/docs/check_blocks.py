"""check_blocks.py ROOT BIN CTEST BUILD CMAKE: checks the blocks of all pages that no compiler checks. See pages.py.

Prints every breach and exits 1 when there is one; at the end, how many blocks of which kind there are.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from commands import Commands, is_shell, split_commands
from names import Names
from pages import LANGUAGES, PageError, pages, quotes, read_blocks


def check_python(block):
    try:
        compile(block.code, block.where, "exec")
    except SyntaxError as error:
        return [f"line {error.lineno} of the block: {error.msg}"]
    return []


def check_json(block):
    """JSON values, one after another, with ".." for what is left out."""
    parts = re.split(r'("(?:\\.|[^"\\])*")', block.code)
    for i in range(0, len(parts), 2):  # outside of strings
        parts[i] = re.sub(r",\s*\.\.+(?=\s*[\]}])|(?<=[\[{])\.\.+(?=[\]}])", "", parts[i])
        parts[i] = re.sub(r"\.\.+", "null", parts[i])
    text = "".join(parts)
    try:
        at = 0
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            _, at = json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as error:
        return [f"JSON: {error.msg} at {text[error.pos:error.pos + 20]!r}"]
    return []


def check_yaml(block):
    try:
        import yaml
    except ImportError:
        return []
    try:
        list(yaml.safe_load_all(block.code))
    except yaml.YAMLError as error:
        return [f"YAML: {error}"]
    return []


class CMake:
    """Checks the syntax and the commands' names; configure_blocks.py does the rest for projects."""

    def __init__(self, root, cmake):
        self.cmake = cmake
        listed = subprocess.run([cmake, "--help-command-list"], capture_output=True, text=True, check=True).stdout
        self.commands = set(listed.split())
        for path in Path(root).glob("cmake/*.cmake"):
            text = path.read_text(encoding="utf-8")
            self.commands |= set(re.findall(r"^(?:function|macro)\((\w+)", text, re.MULTILINE))

    def check(self, block):
        unknown = [name for name in re.findall(r"^\s*(\w+)\s*\(", block.code, re.MULTILINE) if name not in self.commands]
        if unknown:
            return [f"unknown command {unknown[0]}"]
        with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
            script.write(f"if(FALSE)\n{block.code}\nendif()\n")
            script.flush()
            run = subprocess.run([self.cmake, "-P", script.name], capture_output=True, text=True)
        return [run.stderr.strip()] if run.returncode else []


def check_quote(root, block):
    path = Path(root) / block.quotes
    if not path.is_file():
        return [f"there is no {block.quotes} to quote"]
    missing = quotes(block, path.read_text(encoding="utf-8"))
    return [] if missing is None else [f"{block.quotes} has no line {missing!r} here"]


def check_commands(commands, block):
    return [f"{block.page}:{block.line + line}: {message}" for line, words in split_commands(block.code)
            for message in commands.check(words)]


def kind_of(block):
    """How a block is checked."""
    if block.quotes:
        return "quoted from built files"
    if block.language == "cpp":
        return "C++, compiled" if block.run is None else "C++ programs, run"
    if block.language in ("sh", "bash") or block.language == "" and is_shell(block.code):
        return "shell"
    if block.language == "json" or block.language == "" and block.code.lstrip().startswith("{"):
        return "JSON"
    return {"": "not checked", "text": "not checked", "python": "Python", "cmake": "CMake", "yaml": "YAML"}[block.language]


def entries(ctest, build):
    """Names and labels of the ctest entries."""
    shown = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True)
    tests = json.loads(shown.stdout)["tests"]
    labels = {label for test in tests for p in test.get("properties", []) if p["name"] == "LABELS" for label in p["value"]}
    return {test["name"] for test in tests}, labels


def check(root, bin_folder, tests, labels, cmake):
    """Breaches of all pages, and how many blocks of each kind there are."""
    commands = Commands(root, bin_folder, tests, labels)

    def with_place(check_one):
        return lambda block: [f"{block.where}: {message}" for message in check_one(block)]

    names = Names(root, tests, commands)
    checks = {"shell": lambda block: check_commands(commands, block),
              "quoted from built files": with_place(lambda block: check_quote(root, block)),
              "JSON": with_place(check_json), "YAML": with_place(check_yaml), "Python": with_place(check_python),
              "CMake": with_place(CMake(root, cmake).check)}
    found, kinds = [], Counter()
    for page in pages(root):
        try:
            blocks = read_blocks(root, page)
        except PageError as error:
            found.append(str(error))
            continue
        for block in blocks:
            if block.language not in LANGUAGES:
                found.append(f"{block.where}: unknown language {block.language!r} (pages.py lists the known ones)")
                continue
            if re.search(r"\b(TODO|TBD)\b", block.code):
                found.append(f"{block.where}: something is still to do")
            kind = kind_of(block)
            kinds[kind] += 1
            found += checks.get(kind, lambda block: [])(block)
        found += names.check(page, (Path(root) / page).read_text(encoding="utf-8"))
    kinds["commands"], kinds["names in sentences"] = commands.checked, names.checked
    return found, kinds


def main(root, bin_folder, ctest, build, cmake):
    found, kinds = check(root, bin_folder, *entries(ctest, build), cmake)
    print("\n".join(found))
    print("; ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
