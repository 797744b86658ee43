"""scripts/lint checks what changed and nothing else, says what it leaves out, and fails on a finding of clang-tidy."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

LINT = Path(__file__).parents[2] / "scripts" / "lint"

# In place of clang-tidy: finds every BUG, and notes which file it was given.
TIDY = """#!/bin/sh
for file; do :; done
echo "$file" >>build/checked
! grep BUG "$file"
"""
TREE = {
    ".gitignore": "/build/\n",
    "src/comm/gate.cpp": '#include "comm/gate.h"\n',
    "src/comm/gate.h": "",
    "src/comm/rounds.cpp": '#include "comm/gate.h"\n#include "comm/backend.h"\n',
    "src/comm/backend.h": "",
    "src/plan/plan.cpp": "#include <fsdp/plan.h>\n",
    "include/fsdp/plan.h": "",
    "src/comm/nccl.cpp": "",
    "tests/unit/plan_test.cpp": "",
    "README.md": "",
}
CHECKED = ["src/comm/gate.cpp", "src/comm/rounds.cpp", "src/plan/plan.cpp"]
COMPILED = [*CHECKED, "tests/unit/plan_test.cpp"]


@unittest.skipUnless(shutil.which("git"), "needs git")
class Lint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        for name, text in TREE.items():
            self.write(name, text)
        self.write("build/tidy/compile_commands.json",
                   json.dumps([{"directory": str(self.root), "file": str(self.root / name)} for name in COMPILED]))
        self.write("build/clang-tidy", TIDY)
        (self.root / "build/clang-tidy").chmod(0o755)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=self.root, check=True,
                       capture_output=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})

    def clone(self):
        """The tree is the one commit of main; the branch `change` is checked out."""
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "one")
        self.git("checkout", "-q", "-b", "change")

    def commit(self, changes):
        for name, text in changes.items():
            self.write(name, text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "two")

    def lint(self, *arguments):
        """The files that were checked, the exit code, and what was said."""
        log = self.root / "build/checked"
        log.unlink(missing_ok=True)
        ran = subprocess.run([str(LINT), "--tidy", "build/clang-tidy", *arguments], cwd=self.root,
                             capture_output=True, text=True)
        checked = sorted(log.read_text(encoding="utf-8").split()) if log.exists() else []
        return checked, ran.returncode, ran.stdout + ran.stderr

    def test_everything(self):
        self.assertEqual(self.lint()[:2], (CHECKED, 0))

    def test_finding_fails(self):
        self.clone()
        self.commit({"src/plan/plan.cpp": "BUG\n"})
        checked, code, said = self.lint("--changed")
        self.assertEqual((checked, code), (["src/plan/plan.cpp"], 1))
        self.assertIn("found something in 1 of 1 files: src/plan/plan.cpp", said)

    def test_branch_is_compared_with_where_it_left_main(self):
        self.clone()
        self.commit({"src/comm/gate.cpp": "int a;\n"})
        self.commit({"src/plan/plan.cpp": "int a;\n"})
        self.git("checkout", "-q", "main")
        self.commit({"src/comm/rounds.cpp": "int a;\n"})
        self.git("checkout", "-q", "change")
        self.assertEqual(self.lint("--changed")[:2], (["src/comm/gate.cpp", "src/plan/plan.cpp"], 0))

    def test_main_is_compared_with_the_commit_before(self):
        self.clone()
        self.git("checkout", "-q", "main")
        self.commit({"src/comm/gate.cpp": "int a;\n"})
        self.commit({"src/plan/plan.cpp": "int a;\n"})
        self.assertEqual(self.lint("--changed")[:2], (["src/plan/plan.cpp"], 0))

    def test_main_with_commits_of_its_own_is_compared_with_origin(self):
        self.clone()
        self.git("update-ref", "refs/remotes/origin/main", "main")
        self.git("checkout", "-q", "main")
        self.commit({"src/comm/gate.cpp": "int a;\n"})
        self.commit({"src/plan/plan.cpp": "int a;\n"})
        self.assertEqual(self.lint("--changed")[:2], (["src/comm/gate.cpp", "src/plan/plan.cpp"], 0))

    def test_what_is_not_committed_counts(self):
        self.clone()
        self.commit({"README.md": "words\n"})
        self.write("src/plan/plan.cpp", "BUG\n")
        self.assertEqual(self.lint("--changed")[:2], (["src/plan/plan.cpp"], 1))

    def test_header_is_checked_through_its_own_file(self):
        self.clone()
        self.commit({"src/comm/gate.h": "int a;\n", "include/fsdp/plan.h": "int a;\n"})
        self.assertEqual(self.lint("--changed")[:2], (["src/comm/gate.cpp", "src/plan/plan.cpp"], 0))

    def test_header_is_checked_through_another_file(self):
        self.clone()
        self.commit({"src/comm/backend.h": "int a;\n"})
        self.assertEqual(self.lint("--changed")[0], ["src/comm/rounds.cpp"])

    def test_header_of_a_file_that_is_checked_anyway(self):
        self.clone()
        self.commit({"src/comm/gate.h": "int a;\n", "src/comm/rounds.cpp": TREE["src/comm/rounds.cpp"] + "int a;\n"})
        self.assertEqual(self.lint("--changed")[0], ["src/comm/rounds.cpp"])

    def test_what_cannot_be_checked_is_named(self):
        self.clone()
        self.commit({"src/comm/nccl.cpp": "BUG\n", "src/comm/lonely.h": "BUG\n"})
        checked, code, said = self.lint("--changed")
        self.assertEqual((checked, code), ([], 0))
        self.assertRegex(said, "not checked.*: src/comm/nccl.cpp src/comm/lonely.h")

    def test_other_folders(self):
        self.clone()
        self.commit({"README.md": "BUG\n", "tests/unit/plan_test.cpp": "BUG\n"})
        self.assertEqual(self.lint("--changed")[:2], ([], 0))

    def test_removed_file(self):
        self.clone()
        (self.root / "src/comm/gate.cpp").unlink()
        self.commit({})
        self.assertEqual(self.lint("--changed")[:2], ([], 0))

    def test_most_names_what_it_leaves_out(self):
        self.clone()
        self.commit({name: "int a;\n" for name in CHECKED})
        checked, code, said = self.lint("--changed", "--most", "1")
        self.assertEqual((checked, code), (["src/comm/gate.cpp"], 0))
        self.assertIn("3 files to check, and only 1", said)
        self.assertIn("Left out: src/comm/rounds.cpp src/plan/plan.cpp", said)

    def test_no_earlier_commit(self):
        for make in (lambda: None, self.clone):
            make()
            checked, code, said = self.lint("--changed")
            self.assertEqual((checked, code), (CHECKED, 0))
            self.assertIn("every file counts as changed", said)


if __name__ == "__main__":
    unittest.main()
