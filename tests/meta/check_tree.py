"""Checks the shape of the source tree. Prints every breach and exits 1 when there is one.

- every tests/**/*_test.cpp is named in tests/CMakeLists.txt, or in the CMakeLists.txt beside it
- the folders of src/ include each other along the arrows only, and the pure ones reach no torch header
- the folders of src/comm do not include each other, but for the engine in comm/shared
- examples and bench see the public headers and models only, app and trainer also parts of each other; models see nothing of
  fsdp
- app and the folders of trainer reach no torch header
- a public header is short, and shows neither a private library nor src/
- the runtime names no CUDA outside comments
- a file of src/, app/ and trainer/ has at most 300 lines
- lines of .md files, and comments of include/ and src/, fit the columns
"""

import os
import re
import sys
from pathlib import Path

# folder -> the folders it may include, besides itself.
ARROWS = {
    "base": set(),
    "kernels": {"base"},
    "layout": {"base"},
    "plan": {"base", "layout"},
    "files": {"base", "layout"},
    "launch": {"base"},
    "comm": {"base", "kernels", "launch"},
    "data": {"base", "launch"},
    "recompute": set(),
    "watch": {"base", "comm"},
    "transfer": {"base", "comm", "layout"},
}
ARROWS["runtime"] = set(ARROWS) - {"data", "files", "recompute"}
ARROWS["modes"] = ARROWS["runtime"] | {"runtime"}
ARROWS["monitor"] = ARROWS["runtime"] | {"runtime", "modes", "optim"}
ARROWS["optim"] = ARROWS["runtime"] | {"runtime", "modes"}
ARROWS["graph"] = ARROWS["runtime"] | {"runtime"}
ARROWS["shard"] = ARROWS["runtime"] | {"runtime", "modes"}
ARROWS["checkpoint"] = ARROWS["runtime"] | {"runtime", "modes", "optim", "files"}

# folder of src/comm -> the other folders of src/comm it may include. All see comm's own files; of those, only
# the one that chooses a backend sees the backends.
COMM_ARROWS = {"local": {"shared"}, "shm": {"shared"}, "shared": set(), "nccl": set(), "c10d": set(), "gloo": set(),
               "heartbeat": {"shared", "shm"}}
COMM_SEEN_BY_ALL = {"heartbeat"}
COMM_CHOOSER = "make_backend.cpp"

PURE = {"kernels", "layout", "plan", "files"}
TORCH = re.compile(r"^(ATen|c10|torch)/")
PRIVATE_LIBRARIES = re.compile(
    r"^(gtest/|gmock/|benchmark/|CLI/|yaml-cpp/|nlohmann/|xxhash|xxh3|nccl)|record_function\.h$")
MAX_PUBLIC_LINES = 150
MAX_SOURCE_LINES = 300
MAX_COLUMNS = 110
MAX_TABLE_COLUMNS = 200  # a row of a table cannot be broken

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"(^|\s)//")
SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}


def code_files(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES) if folder.is_dir() else []


def markdown_files(root):
    """Those of the tree: not what a build or a virtual environment holds."""
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name != "build" and not name.startswith(".")]
        found += [Path(folder) / name for name in files if name.endswith(".md")]
    return sorted(found)


def includes(path):
    """The include names of a file, in order."""
    return [name for _, name in INCLUDE.findall(path.read_text(encoding="utf-8"))]


def resolve(root, path, name):
    """The file of ours that `path` means by `name`; None when it is not ours."""
    for base in (path.parent, root / "src", root / "include", root):
        candidate = (base / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate
    return None


def torch_reached(root, path, seen):
    """A torch header that `path` includes, also through our own headers; None when there is none."""
    seen.add(path)
    for name in includes(path):
        if TORCH.match(name):
            return name
        ours = resolve(root, path, name)
        if ours and ours not in seen:
            found = torch_reached(root, ours, seen)
            if found:
                return found
    return None


def words_of_listing(folder):
    listing = folder / "CMakeLists.txt"
    text = re.sub(r"#.*", "", listing.read_text(encoding="utf-8")) if listing.is_file() else ""
    return set(re.split(r'[\s()"]+', text))


def check_registered(root):
    named = words_of_listing(root / "tests")
    for path in sorted((root / "tests").rglob("*_test.cpp")):
        name = path.relative_to(root / "tests").as_posix()
        if name not in named and path.name not in words_of_listing(path.parent):
            yield f"tests/{name}: not named in tests/CMakeLists.txt, so it is never built"


def check_arrows(root):
    src = root / "src"
    for path in code_files(src):
        where = path.relative_to(root).as_posix()
        folder = path.relative_to(src).parts[0]
        if folder not in ARROWS:
            yield f"{where}: src/{folder} is no folder of the house; add it to the arrows in check_tree.py"
            continue
        for name in includes(path):
            ours = resolve(root, path, name)
            if ours and ours.is_relative_to(src):
                other = ours.relative_to(src).parts[0]
                if other != folder and other not in ARROWS[folder]:
                    yield f"{where}: includes {name}, but {folder} may not see {other}"
            elif ours and not ours.is_relative_to(root / "include"):
                yield f"{where}: includes {name}, which is outside src/ and include/"
        if folder in PURE:
            found = torch_reached(root, path, set())
            if found:
                yield f"{where}: reaches the torch header {found}, but {folder} is pure"


def check_comm_arrows(root):
    comm = root / "src" / "comm"
    folder_of = lambda path: path.relative_to(comm).parts[0] if path.parent != comm else ""
    for path in code_files(comm):
        where = path.relative_to(root).as_posix()
        folder = folder_of(path)
        if folder and folder not in COMM_ARROWS:
            yield f"{where}: src/comm/{folder} is no folder of comm; add it to the arrows in check_tree.py"
            continue
        allowed = COMM_ARROWS[folder] if folder else set(COMM_ARROWS) if path.name == COMM_CHOOSER else set()
        for name in includes(path):
            ours = resolve(root, path, name)
            other = folder_of(ours) if ours and ours.is_relative_to(comm) else ""
            if other and other != folder and other not in allowed | COMM_SEEN_BY_ALL:
                yield f"{where}: includes {name}, but comm/{folder or path.name} may not see comm/{other}"


TYPE = re.compile(r"^(?:class|struct)(?: \[\[\w+\]\])? (\w+)(?: final)?(?: :[^:].*| *)\{", re.MULTILINE)
UNNAMED = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.MULTILINE | re.DOTALL)


def check_type_names(root):
    """Two types of one name in one namespace share their destructors, silently: the linker takes either."""
    seen = {}
    for path in code_files(root / "src") + code_files(root / "include"):
        for name in TYPE.findall(UNNAMED.sub("", path.read_text(encoding="utf-8"))):
            first = seen.setdefault(name, path)
            if first != path:
                yield f"{path.relative_to(root)}: the type {name} is defined in {first.relative_to(root)} too"


# What a folder sees besides itself, the public headers and models.
ALSO_SEES = {
    "app": ("trainer/data", "trainer/watch", "trainer/control", "trainer/doctor", "trainer/generate_request.h"),  # without LibTorch
    "trainer": ("app/config", "app/exit_codes.h", "app/launch/fd.h", "app/launch/quiet_thread.h"),
    "examples": (),
    # A benchmark may look at a part that no public header shows: how fast a hash or a kernel is.
    "bench": ("src/files", "src/kernels", "src/base/worker_pool.h", "src/comm/heartbeat", "trainer/data"),
}
# The front of the command starts at once, since these need no LibTorch.
WITHOUT_TORCH = ("app", "trainer/data", "trainer/watch", "trainer/control", "trainer/doctor")


def check_users(root):
    for folder, also in ALSO_SEES.items():
        for path in code_files(root / folder):
            for name in includes(path):
                ours = resolve(root, path, name)
                if ours and not any(ours.is_relative_to(root / f) for f in (folder, "include", "models", *also)):
                    besides = f"include/fsdp, models and {', '.join(also)}" if also else "include/fsdp and models"
                    yield f"{path.relative_to(root)}: includes {name}; {folder} sees {besides} only"
    for path in (path for folder in WITHOUT_TORCH for path in code_files(root / folder)):
        found = torch_reached(root, path, set())
        if found:
            yield f"{path.relative_to(root)}: reaches the torch header {found}, but the command needs no LibTorch"
    for path in code_files(root / "models"):
        for name in includes(path):
            ours = resolve(root, path, name)
            if name.startswith("fsdp/") or (ours and not ours.is_relative_to(root / "models")):
                yield f"{path.relative_to(root)}: includes {name}; models see nothing of fsdp"


def check_public_headers(root):
    public = root / "include"
    for path in code_files(public):
        where = path.relative_to(root).as_posix()
        for name in includes(path):
            ours = resolve(root, path, name)
            if PRIVATE_LIBRARIES.search(name):
                yield f"{where}: a public header shows {name}"
            elif ours and not ours.is_relative_to(public):
                yield f"{where}: a public header includes {name}, which is not public"
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_PUBLIC_LINES:
            yield f"{where}: {lines} lines; a public header has at most {MAX_PUBLIC_LINES}"


def check_devices(root):
    """The runtime is for every device: what is CUDA's own has its place in comm/nccl, graph and launch."""
    neutral = ("watch", "transfer", "runtime", "modes", "monitor", "shard")
    for path in (path for folder in neutral for path in code_files(root / "src" / folder)):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if "cuda" in re.sub(r"//.*", "", line).lower():
                yield f"{path.relative_to(root)}:{number}: names CUDA, but the runtime is for every device"


def check_sizes(root):
    for path in (path for folder in ("src", "app", "trainer") for path in code_files(root / folder)):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_SOURCE_LINES:
            yield (f"{path.relative_to(root).as_posix()}: {lines} lines; a source file has at most "
                   f"{MAX_SOURCE_LINES}: split it by job")


def is_breakable(line):
    """False for a single word, a link for example, after the marker of a comment or a list."""
    return len(line.strip(" /*-").split()) > 1


def lines_with_limits(root):
    """(path, number, line, columns it may have) of every line that has a limit."""
    for path in markdown_files(root):
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            row = line.startswith("|") and not fenced
            yield path, number, line, MAX_TABLE_COLUMNS if row else MAX_COLUMNS
    for path in code_files(root / "include") + code_files(root / "src"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if COMMENT.search(line):
                yield path, number, line, MAX_COLUMNS


def check_columns(root):
    for path, number, line, limit in lines_with_limits(root):
        if len(line) > limit and is_breakable(line):
            where = f"{path.relative_to(root).as_posix()}:{number}"
            yield f"{where}: {len(line)} columns; at most {limit}"


def check(root):
    root = Path(root).resolve()
    rules = (check_registered, check_arrows, check_comm_arrows, check_type_names, check_users, check_public_headers,
             check_devices, check_columns, check_sizes)
    return [breach for rule in rules for breach in rule(root)]


if __name__ == "__main__":
    breaches = check(sys.argv[1])
    print("\n".join(breaches) if breaches else "the tree is in order")
    sys.exit(1 if breaches else 0)
