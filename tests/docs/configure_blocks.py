"""configure_blocks.py ROOT CMAKE PREFIX TORCH WORK: configures every CMake block that uses fsdp as a user's project.

A block that lacks project() gets one, and the programs that it links but does not add. FetchContent takes this tree
instead of a download, and add_subdirectory(FOLDER) finds it in FOLDER.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from pages import pages, read_blocks

USES_FSDP = re.compile(r"find_package\(fsdp|add_subdirectory\(\S*fsdp|FetchContent_", re.IGNORECASE)


def project(code):
    """The whole CMakeLists.txt, and the sources it needs."""
    before = "" if re.search(r"^\s*project\s*\(", code, re.MULTILINE) else \
        "cmake_minimum_required(VERSION 3.25)\nproject(doc LANGUAGES CXX)\n"
    added = {words.split()[0]: words.split()[1:] for words in re.findall(r"add_(?:executable|library)\(([^)]*)\)", code)}
    linked = re.findall(r"target_link_libraries\(\s*([\w-]+)", code)
    for name in sorted(set(linked) - set(added)):
        before += f"add_executable({name} main.cpp)\n"
    sources = {"main.cpp"} | {word for words in added.values() for word in words if "." in word}
    return before + code + "\n", sources


def configure(block, root, cmake, prefix, torch, folder):
    """An error message, or an empty string."""
    text, sources = project(block.code)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(text, encoding="utf-8")
    for source in sources:
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        (folder / source).write_text("int main() {}\n", encoding="utf-8")
    for inner in re.findall(r"add_subdirectory\((\S*fsdp[^\s)]*)", text):
        (folder / inner).parent.mkdir(parents=True, exist_ok=True)
        (folder / inner).symlink_to(root)
    run = subprocess.run([cmake, "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
                          f"-DFSDP_TORCH_ROOT={torch}", f"-DFETCHCONTENT_SOURCE_DIR_FSDP={root}"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.stdout if run.returncode else ""


def main(root, cmake, prefix, torch, work):
    blocks = [b for page in pages(root) for b in read_blocks(root, page) if b.language == "cmake" and USES_FSDP.search(b.code)]
    failed = False
    for number, block in enumerate(blocks):
        message = configure(block, root, cmake, prefix, torch, Path(work) / str(number))
        print(f"{block.where}: {message or 'configured'}")
        failed = failed or bool(message)
    if not blocks:
        print("no page has a CMake block that uses fsdp")
    return 1 if failed or not blocks else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
