"""cpp_blocks.py ROOT PAGE OUT: writes the C++ file that compiles the blocks of a page.
cpp_blocks.py --programs ROOT OUT: writes the one that runs the programs of all pages: OUT FILE:LINE ARGUMENTS...

Statements of a block become the body of a function. What can only stand outside of one (functions, classes and
templates, with all that is before them) goes to a namespace of the block's own, and #include to the top of the file.
#line makes the compiler name the page and its line.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pages import PageError, pages, read_blocks

CONTROL = re.compile(r"(if|for|while|switch|do|else|try|catch|return|case|default)\b")
DECLARES = re.compile(r"(inline\s+|static\s+)*(struct|class|enum|union|template|namespace|concept|extern)\b|TORCH_MODULE")
FUNCTION = re.compile(r"[^={};]*[\w>*&\]]\s+[*&]?[\w:~]+\s*\((.*)\)\s*(const|noexcept|override|->[^{]*|\s)*$", re.DOTALL)
CONSTRUCTOR = re.compile(r"(\w+)::\1\s*\(")
TOKEN = re.compile(r"""
  (?P<comment>//[^\n]*|/\*.*?\*/)
| (?P<raw>R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)")
| (?P<string>"(?:\\.|[^"\\\n])*")
| (?P<number>\d[\w.']*)
| (?P<char>'(?:\\.|[^'\\\n])+')
| (?P<include>^[ \t]*\#[^\n]*)
| (?P<other>\w+|.)
""", re.VERBOSE | re.DOTALL | re.MULTILINE)


@dataclass
class Item:
    line: int  # of its first line
    code: str
    outside: bool  # stands outside of functions only


def placeholders(code):
    """The code with "..." as a statement made legal, on the same lines."""
    code = re.sub(r"^([ \t]*)\.\.\.[ \t]*(//[^\n]*)?$", r"\1;  \2", code, flags=re.MULTILINE)
    code = re.sub(r"\bfor \(\.\.\.\)", "for (;;)", code)
    return re.sub(r"\b(if|while) \(\.\.\.\)", r"\1 (true)", code)


def _outside(code):
    words = re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.DOTALL).strip()
    words = re.sub(r"^(\[\[[^\]]*\]\]\s*)+", "", words)
    if DECLARES.match(words):
        return True
    depth = 0
    for at, char in enumerate(words):
        depth += (char == "(") - (char == ")")
        if char == "{" and depth == 0:
            head = words[:at].strip()
            return not CONTROL.match(head) and bool(FUNCTION.match(head) or CONSTRUCTOR.match(head))
    return False


def items(code, line):
    """Splits code at the ends of its statements and declarations. Includes are items of their own."""
    found, begin, depth, parens = [], 0, 0, 0

    def cut(end, outside=None):
        nonlocal begin
        text = code[begin:end]
        if text.strip():
            blank = len(text) - len(text.lstrip("\n"))
            found.append(Item(line + code.count("\n", 0, begin + blank), text[blank:],
                              _outside(text) if outside is None else outside))
        begin = end

    for token in TOKEN.finditer(code):
        text = token.group()
        if token.lastgroup == "include":
            if text.lstrip().startswith("#include"):
                cut(token.start())
                cut(token.end(), True)
        elif token.lastgroup == "other":
            depth += (text == "{") - (text == "}")
            parens += (text in "([") - (text in ")]") if text in "()[]" else 0
            if depth == 0 and parens == 0 and (text == ";" or text == "}" and _ends(code, begin, token.end())):
                cut(token.end())
    cut(len(code))
    return found


def _ends(code, begin, end):
    """Does the brace that closes before `end` end its item? Not that of a class or an initialiser."""
    rest = re.match(r"(\s|//[^\n]*|/\*.*?\*/)*(.?)", code[end:], re.DOTALL).group(2)
    return rest not in (";", ",", ")", ".", "(", "[") or rest in ("[", "(") and _outside(code[begin:end])


def split(code, line):
    """Includes, what stands outside of functions, and statements: lists of items."""
    all_items = items(placeholders(code), line)
    includes = [item for item in all_items if item.code.lstrip().startswith("#include")]
    others = [item for item in all_items if item not in includes]
    last = max((i for i, item in enumerate(others) if item.outside), default=-1)
    return includes, others[:last + 1], others[last + 1:]


def _emit(all_items, page):
    return "".join(f'#line {item.line} "{page}"\n{item.code}\n' for item in all_items)


def _parts(block):
    """As split(), with the code of the block's markers before its own."""
    includes, outside, inside = [], [], []
    for line, code in block.hidden + [(block.line, block.code)]:
        parts = split(code, line)
        includes, outside, inside = includes + parts[0], outside + parts[1], inside + parts[2]
    return includes, outside, inside


def chains(blocks):
    """Groups of blocks that see each other: each begins with a block that continues none."""
    groups = []
    for block in blocks:
        if block.continues and not groups:
            raise PageError(f"{block.where}: there is no block to continue")
        if block.continues:
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def compiled(blocks):
    """Those of a page's blocks that are compiled by themselves."""
    return [block for block in blocks if block.language == "cpp" and not block.quotes]


def generate(blocks, page):
    """The C++ file of a page."""
    top, body = [], []
    for chain in chains(compiled(blocks)):
        close = ""
        statements = ""
        for block in chain:
            includes, outside, inside = _parts(block)
            top += includes
            body.append(f"namespace block_{block.line} {{\n{_emit(outside, page)}")
            statements += "{\n" + _emit(inside, page)
            close += "}"
        end = f'#line 1 "end of {page}:{chain[-1].line}"\n'
        body.append(f"inline auto statements() {{\n{statements}{end}{close}\n}}\n{close}\n")
    about = f"// The C++ blocks of {page}, compiled and never run. Made by cpp_blocks.py.\n"
    if not body:
        return about
    return f'{about}#include "docs/context.h"\n{_emit(top, page)}namespace doc {{\n{"".join(body)}}}  // namespace doc\n'


def programs(blocks):
    """The file that runs the blocks with `run`: its arguments are a block's place and the program's arguments."""
    top, body, table = [], [], []
    for block in blocks:
        includes, outside, inside = _parts(block)
        if inside or not any(re.search(r"\bmain\s*\(", item.code) for item in outside):
            raise PageError(f"{block.where}: `run` is for a whole program with a main")
        name = f"block_{len(table)}"
        top.append(_emit(includes, block.page))
        body.append(f"namespace {name} {{\n{_emit(outside, block.page)}}}\n")
        call = f"{name}::main(argc, argv)" if "char**" in block.code else f"{name}::main()"
        table.append(f'  if (where == "{block.where}") return {call};\n')
    return (f'// The programs of the pages. Made by cpp_blocks.py.\n#include <string_view>\n{"".join(top)}{"".join(body)}'
            '#line 1 "programs"\nint main(int argc, char** argv) {\n'
            '  const std::string_view where = argc > 1 ? argv[1] : "";\n  ++argv, --argc;\n'
            f'{"".join(table)}  return 2;\n}}\n')


def main(arguments):
    try:
        if arguments[0] == "--programs":
            root, out = arguments[1:]
            text = programs([b for page in pages(root) for b in read_blocks(root, page) if b.run is not None])
        else:
            root, page, out = arguments
            text = generate(read_blocks(root, page), page)
    except PageError as error:
        sys.exit(str(error))
    Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
