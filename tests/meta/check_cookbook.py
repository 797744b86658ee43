"""Compares docs/cookbook.md with the programs of examples/cookbook. Prints every breach and exits 1 when there is one.

- every program NN_name.cpp has a row in the table, and peers/NN_name.py beside it; the table has no other rows
- the numbers of a row are the lines of code of NN_name.cpp, of peers/NN_name.py and of peers/NN_name_accelerate.py
  where there is one: lines that are neither blank nor comment
- no program is longer than the PyTorch programs beside it
- every C++ and Python block of the page quotes a file of the tree, by the marker <!-- block: from FILE -->: its lines
  are there, in order; a line of "..." stands for lines left out. Every program is quoted
"""

import ast
import re
import sys
from pathlib import Path

PAGE = "docs/cookbook.md"
PROGRAMS = "examples/cookbook"

ROW = re.compile(r"^\|[^|]*\|\s*`(\d\d_\w+)`\s*\|(.*)\|\s*$", re.MULTILINE)
BLOCK = re.compile(r"(?:<!-- block: from (\S+) -->\s*\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CPP_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def cpp_lines(text):
    def code(match):
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", "", match[0])
    return sum(bool(line.strip()) for line in CPP_TOKEN.sub(code, text).splitlines())


def python_lines(text):
    """Docstrings are comments here."""
    comments = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            comments |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return sum(number not in comments and bool(line.strip()) and not line.lstrip().startswith("#")
               for number, line in enumerate(text.splitlines(), 1))


def counts(folder, program):
    """The numbers of a program's row; None where there is no such file."""
    files = (f"{program}.cpp", f"peers/{program}.py", f"peers/{program}_accelerate.py")
    paths = [folder / name for name in files]
    return [(cpp_lines if path.suffix == ".cpp" else python_lines)(path.read_text(encoding="utf-8"))
            if path.is_file() else None for path in paths]


def check_table(page, folder):
    programs = sorted(path.stem for path in folder.glob("[0-9][0-9]_*.cpp"))
    rows = [(name, [int(cell) if cell.strip().isdigit() else None for cell in cells.split("|")])
            for name, cells in ROW.findall(page)]
    for name in programs:
        if name not in [row_name for row_name, _ in rows]:
            yield f"{PAGE}: {name} has no row"
    for name, found in rows:
        if name not in programs:
            yield f"{PAGE}: there is no program {name}"
            continue
        wanted = counts(folder, name)
        if wanted[1] is None:
            yield f"{PROGRAMS}/{name}.cpp: there is no peers/{name}.py"
        if found != wanted:
            shown = lambda numbers: ", ".join("none" if number is None else str(number) for number in numbers)
            yield f"{PAGE}: the row of {name} says {shown(found)}; the files have {shown(wanted)}"
        for peer in (number for number in wanted[1:] if number is not None and number < wanted[0]):
            yield f"{PROGRAMS}/{name}.cpp: {wanted[0]} lines, but PyTorch needs {peer}"


def is_quoted(code, text):
    """Are the lines of `code` in `text`, in order? White space at their ends does not count."""
    source = [line.strip() for line in text.splitlines()]
    at = 0
    for fragment in re.split(r"^\s*(?://\s*|#\s*)?\.\.\.\s*$", code, flags=re.MULTILINE):
        lines = [line.strip() for line in fragment.strip().splitlines()]
        starts = (i for i in range(at, len(source) - len(lines) + 1) if source[i:i + len(lines)] == lines)
        at = next(starts, -1) + len(lines)
        if at < len(lines):
            return False
    return True


def check_blocks(root, page):
    quoted = set()
    for match in BLOCK.finditer(page):
        name, language, code = match.groups()
        where = f"{PAGE}:{page.count(chr(10), 0, match.start(3)) + 1}"
        if name is None and language in ("cpp", "python"):
            yield f"{where}: the block quotes no file"
        elif name is not None and not (root / name).is_file():
            yield f"{where}: there is no {name}"
        elif name is not None:
            quoted.add(name)
            if not is_quoted(code, (root / name).read_text(encoding="utf-8")):
                yield f"{where}: the block is not in {name}"
    for path in sorted((root / PROGRAMS).glob("[0-9][0-9]_*.cpp")):
        if f"{PROGRAMS}/{path.name}" not in quoted:
            yield f"{PAGE}: no block is from {PROGRAMS}/{path.name}"


def check(root):
    root = Path(root)
    page = (root / PAGE).read_text(encoding="utf-8")
    return [*check_table(page, root / PROGRAMS), *check_blocks(root, page)]


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) if found else f"{PAGE} shows what {PROGRAMS} has")
    sys.exit(1 if found else 0)
