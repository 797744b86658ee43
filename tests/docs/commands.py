"""Do the commands of a shell block exist: make targets, programs, subcommands, benchmarks, and their options?"""

import re
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

# Commands that are not ours; nothing of them is checked but the programs of ours that they start.
EXTERNAL = {"cat", "cd", "cmake", "cp", "docker", "echo", "env", "export", "gdb", "git", "grep", "head",
            "kill",
            "kubectl", "ls", "mkdir", "mpiexec.hydra", "mpirun", "nsys", "numactl", "perf", "pip", "py-spy",
            "python", "python3", "ray", "rm", "sbatch", "scancel", "scontrol", "source", "srun", "ssh",
            "sudo", "tail", "tar", "taskset", "time", "torchrun", "ulimit"}
# What users call their own program.
THEIRS = re.compile(r"my_program$|\./\w+$|build/\w+$|PROGRAM$")
OURS = re.compile(r"(make|ctest|fsdp|bench/run)$|(build/(\w+/)?bin|scripts|\.ci|tests)/")
BUILT = re.compile(r"build/(?:\w+/)?bin/(.+)$")
VARIABLE = re.compile(r"(\w+)=(.*)$")


def split_commands(code):
    """(line, words) of every command of shell code; the line counts from 0. Assignments before a command are words."""
    lines = code.split("\n")
    if any(line.startswith("$ ") for line in lines):  # the others are output
        lines = [line[2:] if line.startswith("$ ") else "" for line in lines]
    at = 0
    while at < len(lines):
        first, text = at, lines[at]
        while text.endswith("\\") and at + 1 < len(lines):
            at += 1
            text = text[:-1] + " " + lines[at]
        at += 1
        words = []
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:  # an apostrophe: no shell code
            tokens = [text]
        for word in tokens + [";"]:
            if set(word) <= set("&|;()"):
                if words:
                    yield first, words
                words = []
            else:
                words.append(word)


def _command(words):
    """Without the variables that are set for the command."""
    while words and VARIABLE.match(words[0]):
        words = words[1:]
    return words


def is_shell(code):
    """Is a block without a language one of commands? Its first line says so."""
    first = next((_command(words) for _, words in split_commands(code)), [])
    return bool(first) and (bool(OURS.match(first[0])) or first[0] in EXTERNAL or bool(THEIRS.match(first[0])))


class Commands:
    """Checks commands against the tree `root` and the programs in `bin_folder`."""

    def __init__(self, root, bin_folder, tests=(), labels=()):
        self.root, self.bin = Path(root), Path(bin_folder)
        self.tests, self.labels = set(tests), set(labels)
        self.checked = 0
        makefile = self.root / "Makefile"
        self.makefile = makefile.read_text(encoding="utf-8") if makefile.is_file() else ""

    def check(self, words):
        """What is wrong with a command: messages. Words of prose around it, such as NAME, are taken for values."""
        words = _command([word for word in words if word not in ("<", ">", ">>")])
        if not words:
            return []
        name = words[0]
        self.checked += 1
        if name == "make":
            return self._make(words[1:])
        if name == "ctest":
            return self._ctest(words[1:])
        if name == "bench/run":
            return self._subcommands([sys.executable, str(self.root / name)], name, words[1:])
        if words[:2] == ["fsdp", "run"] and "fsdp" in words[1:]:
            inner = words.index("fsdp", 1)
            return self._program("fsdp", words[1:inner]) + self._started_by(words)
        if name == "fsdp":
            return self._program("fsdp", words[1:])
        built = BUILT.match(name)
        if built:
            return self._program(built.group(1), words[1:])
        if OURS.match(name):
            return [] if (self.root / name).is_file() else [f"there is no {name}"]
        if name in EXTERNAL:
            return self._started_by(words)
        return [] if THEIRS.match(name) else [f"unknown command {name!r} (commands.py lists the known ones)"]

    def _started_by(self, words):
        """The program of ours that a launcher starts."""
        inner = next((i for i, word in enumerate(words) if i > 0 and (word == "fsdp" or BUILT.match(word))), None)
        return [] if inner is None else self.check(words[inner:])

    def _make(self, words):
        targets = set(re.findall(r"^([\w-]+):", self.makefile, re.MULTILINE))
        found = []
        for word in words:
            variable = VARIABLE.match(word)
            if variable and not re.search(rf"\b{variable.group(1)}\b", self.makefile):
                found.append(f"the Makefile has no variable {variable.group(1)}")
            elif variable and variable.group(1) == "TARGET":
                found += [f"no target {name} in CMake" for name in variable.group(2).split() if not self._target(name)]
            elif not variable and not word.startswith("-") and word not in targets:
                found.append(f"the Makefile has no target {word}")
        return found

    def _target(self, name):
        files = [path for path in self.root.glob("*/CMakeLists.txt")]
        return any(re.search(rf"\b{re.escape(name)}\b", path.read_text(encoding="utf-8")) for path in files) or \
            (self.root / "examples" / name).is_dir()

    def _ctest(self, words):
        found = []
        for option, value in zip(words, words[1:]):
            if option in ("-R", "-E") and not any(re.search(value, test) for test in self.tests):
                found.append(f"no test matches {option} {value}")
            if option in ("-L", "-LE") and not any(re.search(value, label) for label in self.labels):
                found.append(f"no label matches {option} {value}")
        return found

    def _program(self, name, words):
        program = self.bin / name
        if not program.is_file():
            return [f"there is no program {name} in the build"]
        return self._subcommands([str(program)], name, words)

    def _subcommands(self, command, name, words):
        """The words before the first option that are subcommands by the help, then options of the last one."""
        if not any(word.startswith("-") for word in words) and name not in ("fsdp", "bench/run"):
            return []
        text = self.help(tuple(command))
        while words and not words[0].startswith("-"):
            names = re.split(r"^(?:Subcommands|benchmarks):$", text, flags=re.MULTILINE)
            if len(names) == 1 or words[0].isupper():  # bench/run NAME
                break
            if not re.search(rf"^\s+{re.escape(words[0])}\b", names[1], re.MULTILINE):
                return [f"{name} knows no {words[0]!r}"]
            command, name, words = command + [words[0]], f"{name} {words[0]}", words[1:]
            text = self.help(tuple(command))
        options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
        known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text)) | {"--help"}
        return [f"{name} has no option {option}" for option in options
                if option not in known and not option.startswith("--gtest_")]

    @staticmethod
    @lru_cache(maxsize=None)
    def help(command):
        run = subprocess.run([*command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return run.stdout
