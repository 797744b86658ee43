"""check_filters.py CTEST BUILD_DIR: fails when a test of a test binary is matched by no ctest entry.

A suite that no filter names would be built and never run.
"""

import fnmatch
import json
import os
import subprocess
import sys


def listed_tests(binary):
    """Suite.Case of every test in the binary."""
    output = subprocess.run([binary, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    suite = ""
    for line in output.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith("  "):
            yield suite + name
        elif name.endswith("."):
            suite = name


def matches(test, gtest_filter):
    positive, _, negative = gtest_filter.partition("-")
    hit = lambda patterns: any(fnmatch.fnmatchcase(test, p) for p in patterns.split(":") if p)
    return hit(positive or "*") and not hit(negative)


def main(ctest, build_dir):
    entries = json.loads(subprocess.run([ctest, "--test-dir", build_dir, "--show-only=json-v1"],
                                        check=True, capture_output=True, text=True).stdout)["tests"]
    filters = {}
    for entry in entries:
        command = entry.get("command", [])
        if len(command) == 2 and command[1].startswith("--gtest_filter="):
            filters.setdefault(command[0], []).append(command[1].split("=", 1)[1])
    missed = [f"{os.path.basename(binary)}: {test}" for binary, given in filters.items()
              for test in listed_tests(binary) if not any(matches(test, f) for f in given)]
    if missed:
        print("no fsdp_test entry of tests/CMakeLists.txt runs:\n" + "\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
