"""Each rule of check_cookbook.py goes red on a page or a program that breaks it, and a good tree passes."""

import tempfile
import unittest
from pathlib import Path

from check_cookbook import check, cpp_lines, python_lines

PROGRAM = """// Trains.
#include <fsdp/fsdp.h>

/* A comment
   of two lines. */
void train() {
  begin("// no comment");
  step(1);  // the first

  finish();
}
"""
PEER = '''"""Trains."""

import torch


def main():
    """Really."""
    # a comment
    begin()
    step(1)
    finish()
    print("""
    text
    """)


main()
'''
PAGE = """# Cookbook

| task | program | ours | FSDP2 + DCP | accelerate |
|---|---|---|---|---|
| train | `01_train` | 6 | 9 | |
| stop | `02_stop` | 1 | 1 | 2 |

<!-- block: from examples/cookbook/01_train.cpp -->
```cpp
begin("// no comment");
...
finish();
```

```text
output
```

<!-- block: from examples/cookbook/02_stop.cpp -->
```cpp
int main() {}
```
"""
GOOD = {
    "docs/cookbook.md": PAGE,
    "examples/cookbook/01_train.cpp": PROGRAM,
    "examples/cookbook/02_stop.cpp": "int main() {}\n",
    "examples/cookbook/peers/01_train.py": PEER,
    "examples/cookbook/peers/02_stop.py": "pass\n",
    "examples/cookbook/peers/02_stop_accelerate.py": "import accelerate\npass\n",
}


class CheckCookbook(unittest.TestCase):
    def breaches(self, name="docs/cookbook.md", old="", new="", without=()):
        self.assertIn(old, GOOD[name])
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {**GOOD, name: GOOD[name].replace(old, new, 1) if old else GOOD[name]}.items():
                target = Path(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if path not in without:
                    target.write_text(text, encoding="utf-8")
            return check(folder)

    def assert_red(self, name, old, new, words):
        found = self.breaches(name, old, new)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_good_tree_passes(self):
        self.assertEqual(self.breaches(), [])

    def test_lines_of_code(self):
        self.assertEqual(cpp_lines(PROGRAM), 6)
        self.assertEqual(python_lines(PEER), 9)

    def test_other_numbers(self):
        for old, new in (("| 6 |", "| 5 |"), ("| 9 |", "| 10 |"), ("| 9 | |", "| 9 | 9 |"), ("| 1 | 2 |", "| 1 | |")):
            self.assert_red("docs/cookbook.md", old, new, "the row of 0")

    def test_longer_program(self):
        found = self.breaches("examples/cookbook/02_stop.cpp", "int main() {}", "int\nmain() {}")
        self.assertIn("examples/cookbook/02_stop.cpp: 2 lines, but PyTorch needs 1", found)

    def test_rows_and_programs(self):
        self.assert_red("docs/cookbook.md", "| stop | `02_stop` | 1 | 1 | 2 |\n", "", "02_stop has no row")
        self.assert_red("docs/cookbook.md", "| stop |", "| more | `03_more` | 1 | 1 | |\n| stop |", "no program 03_more")
        found = self.breaches(without=["examples/cookbook/peers/02_stop.py"])
        self.assertIn("examples/cookbook/02_stop.cpp: there is no peers/02_stop.py", found)

    def test_blocks(self):
        page = "docs/cookbook.md"
        self.assert_red(page, "finish();", "finish(1);", "cookbook.md:10: the block is not in examples/cookbook/01_train.cpp")
        self.assert_red(page, "begin(\"// no comment\");\n...\nfinish();", "finish();\n...\nstep(1);  // the first", "is not in")
        self.assert_red(page, "...\n", "", "the block is not in examples/cookbook/01_train.cpp")
        self.assert_red(page, "```text", "```cpp", "the block quotes no file")
        found = self.breaches(page, "cookbook/02_stop.cpp -->", "cookbook/02_stops.cpp -->")
        self.assertIn("there is no examples/cookbook/02_stops.cpp", found[0])
        self.assertIn("no block is from examples/cookbook/02_stop.cpp", found[1])


if __name__ == "__main__":
    unittest.main()
