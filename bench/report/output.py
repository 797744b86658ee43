"""How every benchmark reads lists, keeps its JSON lines and prints its table."""

import contextlib
import json
import pathlib

from . import programs

RESULTS = programs.ROOT / "bench" / "results"


def numbers(text):
    return [int(number) for number in text.split(",")]


def add_options(parser, program):
    """The options that all benchmarks have."""
    parser.add_argument("--no-peers", action="store_true", help="ours alone; ratios against peers are null")
    parser.add_argument("--bin", default="build/bin", metavar="DIR", help=f"where {program} is")
    parser.add_argument("--python", metavar="PROGRAM", help="a Python with torch for the peers")
    parser.add_argument("--out", default=RESULTS, type=pathlib.Path, metavar="DIR", help="for the JSON lines")


@contextlib.contextmanager
def json_lines(folder, name):
    """Yields a function that prints a line and also keeps it in folder/NAME.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.jsonl", "w") as file:

        def emit(line):
            text = json.dumps(line, separators=(",", ":"))
            print(text, flush=True)
            print(text, file=file, flush=True)

        yield emit


def rounded(ratio):
    return None if ratio is None else round(ratio, 3)


def aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows)
