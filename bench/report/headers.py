"""What <fsdp/fsdp.h> adds to the time of compiling a file that includes <torch/torch.h>."""

import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from . import output, programs

GOAL = 1.1
FILES = {
    "torch": "#include <torch/torch.h>\n",
    "fsdp": "#include <fsdp/fsdp.h>\n",
    "both": "#include <torch/torch.h>\n#include <fsdp/fsdp.h>\n",
}
FIELDS = ("seconds", "lines", "headers")


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each file, in turn")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--out", default=output.RESULTS, type=pathlib.Path, metavar="DIR", help="for the JSON lines")


def torch_includes():
    root = os.environ.get("FSDP_TORCH_ROOT")
    folders = [pathlib.Path(root)] if root else sorted((programs.ROOT / ".venv").glob("lib*/python3*/site-packages/torch"))
    for folder in folders:
        for include in (folder / "include", folder / "torch" / "include"):
            if (include / "torch").exists():
                return [include, include / "torch/csrc/api/include"]
    raise programs.BenchError("there is no LibTorch in .venv: run `make setup`, or set FSDP_TORCH_ROOT")


def compile_once(command):
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise programs.BenchError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return time.monotonic() - begin, done.stdout


def measure(name, source, options, flags):
    base = [options.compiler, "-std=c++20", *flags]
    _, text = compile_once([*base, "-E", "-P", source])
    _, rule = compile_once([*base, "-M", source])
    return {
        "bench": "headers",
        "includes": name,
        "lines": text.count("\n"),
        "headers": sum(word.endswith((".h", ".hpp")) for word in rule.split()),
    }


def run(options):
    flags = [f"-I{programs.ROOT / 'include'}", *(f"-isystem{folder}" for folder in torch_includes())]
    with tempfile.TemporaryDirectory() as folder, output.json_lines(options.out, "headers") as emit:
        sources, lines, seconds = {}, {}, {name: [] for name in FILES}
        for name, text in FILES.items():
            sources[name] = pathlib.Path(folder) / f"{name}.cpp"
            sources[name].write_text(text + "int main() {}\n")
            lines[name] = measure(name, sources[name], options, flags)
        for _ in range(options.rounds):
            for name, source in sources.items():
                command = [options.compiler, "-std=c++20", *flags, "-O2", "-c", source, "-o", f"{folder}/{name}.o"]
                seconds[name].append(compile_once(command)[0])
        rows = [["includes", *FIELDS]]
        for name, line in lines.items():
            line["seconds"] = round(statistics.median(seconds[name]), 2)
            emit(line)
            rows.append([name, *(str(line[field]) for field in FIELDS)])
        print("\n" + output.aligned(rows) + "\n")
        ratio = statistics.median(both / alone for both, alone in zip(seconds["both"], seconds["torch"]))
        emit({
            "bench": "headers",
            "seconds_vs_torch": output.rounded(ratio),
            "lines_vs_torch": output.rounded(lines["both"]["lines"] / lines["torch"]["lines"]),
            "ok": ratio <= GOAL,
        })
