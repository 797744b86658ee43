"""blocks_test.py CXX CMAKE: each rule about blocks of pages goes red on a page that breaks it, and a good page passes."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import check_blocks
import configure_blocks
import torch_names
from commands import Commands, is_shell, split_commands
from cpp_blocks import generate, programs, split
from names import Names, slug
from pages import PageError, pages, parse_blocks, quotes

CXX, CMAKE = "c++", "cmake"  # from the command line


def page(*blocks):
    """A page of blocks: (language, code), or text between them."""
    return "\n".join(b if isinstance(b, str) else f"```{b[0]}\n{b[1]}\n```" for b in blocks)


def block(language, code, **more):
    return SimpleNamespace(language=language, code=code, line=1, page="p.md", where="p.md:1", **more)


class Pages(unittest.TestCase):
    def test_blocks_with_their_lines(self):
        found = parse_blocks("# Title\n\n```cpp\nint a;\n```\n1. item\n   ```sh\n   make\n     x\n   ```\n", "p.md")
        self.assertEqual([(b.where, b.language, b.code) for b in found],
                         [("p.md:4", "cpp", "int a;"), ("p.md:8", "sh", "make\n  x")])

    def test_markers(self):
        text = page("<!-- a remark -->\n<!-- code:\nint a;\nint b;\n-->\n<!-- block: continues -->", ("cpp", "b = a;"),
                    "<!-- block: run --ranks 2 -->", ("cpp", "int main() {}"), "<!-- block: from a.cpp -->", ("cpp", "x"))
        one, two, three = parse_blocks(text, "p.md")
        self.assertTrue(one.continues)
        self.assertEqual(one.hidden, [(2, "\nint a;\nint b;")])
        self.assertEqual(two.run, ["--ranks", "2"])
        self.assertEqual(three.quotes, "a.cpp")

    def test_markers_that_do_nothing_are_refused(self):
        for text in ("<!-- block: continued -->\n```cpp\n```", "<!-- block: continues -->\ntext\n```cpp\n```",
                     "<!-- code: int a; -->", "```cpp\nint a;\n"):
            with self.assertRaises(PageError, msg=text):
                parse_blocks(text, "p.md")
        with self.assertRaisesRegex(PageError, "no block to continue"):
            generate(parse_blocks(page("<!-- block: continues -->", ("cpp", "a();")), "p.md"), "p.md")

    def test_pages_of_the_tree(self):
        found = pages(Path(__file__).parents[2])
        self.assertTrue({"README.md", "docs/sharding.md", "docs/checkpoints.md", "models/README.md"} <= set(found))

    def test_quotes(self):
        source = "int main() {\n  int a = 1;\n  int b = 2;\n  int c = 3;\n}\n"
        self.assertIsNone(quotes(block("cpp", "int a = 1;\nint b = 2;"), source))
        self.assertIsNone(quotes(block("cpp", "int main() {\n  ...\n  int c = 3;"), source))
        self.assertEqual(quotes(block("cpp", "int a = 1;\nint b = 3;"), source), "int b = 3;")
        self.assertEqual(quotes(block("cpp", "int c = 3;\n...\nint a = 1;"), source), "int a = 1;")
        self.assertEqual(quotes(block("cpp", "int a = 1;\nint c = 3;"), source), "int a = 1;")


class Cpp(unittest.TestCase):
    def compiles(self, *blocks):
        """(whether it compiles, messages) of a page with a context of a number and a function."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "docs").mkdir()
            (Path(folder) / "docs" / "context.h").write_text("namespace doc { extern int x; int f(int); }\n")
            source = Path(folder) / "page.cpp"
            source.write_text(generate(parse_blocks(page(*blocks), "docs/p.md"), "docs/p.md"))
            run = subprocess.run([CXX, "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-unused", "-Werror", f"-I{folder}",
                                  str(source)], capture_output=True, text=True)
        return run.returncode == 0, run.stderr

    def assert_compiles(self, *blocks):
        good, messages = self.compiles(*blocks)
        self.assertTrue(good, messages)

    def test_statements_functions_and_classes(self):
        self.assert_compiles(
            ("cpp", "int y = f(x);  // a remark\nfor (int i = 0; i < 1'000; ++i) {\n  y += i;\n}\nif (y) {\n  f(1);\n} else {\n"
                    "  f(2);\n}"),
            ("cpp", "#include <string>\nstruct Pair { int a, b; };\ntemplate <class T> T first(T t) { return t; }\n\n"
                    "auto p = Pair{1, 2};\nauto g = [&](int i = {}) { return first(i) + p.a; };\ng(2);"),
            ("cpp", "const int kSteps = 3;\nint twice(int a, int b = {}) { return f(a) + b * kSteps; }\n"
                    "int main(int argc, char** argv) { return twice(argc); }"),
            ("cpp", "#include <vector>\nstd::vector<int> v{1, 2};\nstd::vector<int> w(3, f([](int i) { return i; }(1)));\n"
                    "return v[0] + w[0];"))

    def test_placeholders(self):
        self.assert_compiles(("cpp", "int y = 1;\n...\nfor (...) {\n  ...   // one step\n  if (...) f(y);\n}\n// ..."))

    def test_scopes(self):
        self.assert_compiles(("cpp", "int y = f(1);"), "<!-- block: continues -->", ("cpp", "f(y);"),
                             "<!-- block: continues -->\n<!-- code: int z = 0; -->", ("cpp", "int y = z;"))
        good, messages = self.compiles(("cpp", "int y = f(1);"), ("cpp", "\nf(y);"))
        self.assertFalse(good)
        self.assertIn("docs/p.md:6:", messages)

    def test_wrong_blocks_do_not_compile(self):
        for code, place in (("f(1);\n\nf(1, 2);", ":4:"), ("int main() {\n  return g();\n}", ":3:"), ("f(1)", ":2:"),
                            ("if (f(1)) {\n", ""), ("}", ""), ("#include <vektor>", ":2:")):
            good, messages = self.compiles(("cpp", code))
            self.assertFalse(good, code)
            self.assertIn(f"docs/p.md{place}", messages)

    def test_quotes_are_not_compiled(self):
        self.assert_compiles("<!-- block: from a.cpp -->", ("cpp", "nonsense"), ("python", "more"))

    def test_split(self):
        includes, outside, inside = split("#include <a>\nint f() {\n}\nint a = f();\nb(\n);", 10)
        self.assertEqual([i.line for i in includes + outside + inside], [10, 11, 13, 14])
        self.assertEqual([len(includes), len(outside), len(inside)], [1, 1, 2])

    def test_programs(self):
        text = page("<!-- block: run --fast -->", ("cpp", "int answer() { return 3; }\nint main() { return answer(); }"),
                    "<!-- block: run -->", ("cpp", "int main(int argc, char** argv) { return argc; }"))
        with tempfile.TemporaryDirectory() as folder:
            source, binary = Path(folder) / "programs.cpp", Path(folder) / "programs"
            source.write_text(programs(parse_blocks(text, "p.md")))
            subprocess.run([CXX, "-std=c++20", str(source), "-o", str(binary)], check=True)
            codes = [subprocess.run([str(binary), *words]).returncode for words in (["p.md:3"], ["p.md:8", "a"], ["p.md:9"])]
        self.assertEqual(codes, [3, 2, 2])
        with self.assertRaisesRegex(PageError, "whole program"):
            programs(parse_blocks(page("<!-- block: run -->", ("cpp", "f(1);")), "p.md"))


class OtherLanguages(unittest.TestCase):
    def test_python(self):
        self.assertEqual(check_blocks.check_python(block("python", "import torch\n...\nx = torch.f()")), [])
        self.assertIn("line 2", check_blocks.check_python(block("python", "x = 1\ny = (")) [0])

    def test_json(self):
        good = '{"a":..,"b":"..","c":[..],"d":{..}, "e": [1, 2, ...]}\n{"f":1}'
        self.assertEqual(check_blocks.check_json(block("json", good)), [])
        for bad in ('{"a":1,}', '{"a" 1}', '{"a":1', "{a: 1}"):
            self.assertTrue(check_blocks.check_json(block("json", bad)), bad)

    def test_cmake(self):
        root = Path(__file__).parents[2]
        check = check_blocks.CMake(root, CMAKE).check
        self.assertEqual(check(block("cmake", 'find_package(fsdp REQUIRED)  # installed\nfsdp_test(NAME unit.env FILTER "E*")')), [])
        self.assertIn("unknown command find_packet", check(block("cmake", "find_packet(fsdp)"))[0])
        self.assertTrue(check(block("cmake", "find_package(fsdp")))

    def test_cmake_projects(self):
        text, sources = configure_blocks.project("find_package(fsdp REQUIRED)\ntarget_link_libraries(mine PRIVATE fsdp::fsdp)")
        self.assertIn("add_executable(mine main.cpp)", text)
        self.assertLess(text.index("project("), text.index("find_package"))
        whole = "project(x CXX)\nadd_executable(mine src/a.cpp)\ntarget_link_libraries(mine fsdp::fsdp)"
        self.assertEqual(configure_blocks.project(whole), (whole + "\n", {"main.cpp", "src/a.cpp"}))

    def test_names_of_python_modules(self):
        names = {}
        self.assertEqual(list(torch_names.check("import os.path\nfrom textwrap import indent as d\nd('a', prefix='')\nos.path.join()",
                                                names)), [])
        found = [message for code in ("os.path.jion(1)", "d('a', prefic='')", "import torch.nothing_there")
                 for _, message in torch_names.check(code, names)]
        self.assertEqual(len(found), 3, found)


class Shell(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        for name, text in {
            "Makefile": "JOBS ?= 2\nTARGET =\ntest: build ## Test\nbuild:\n", "src/CMakeLists.txt": "add_library(fsdp a.cpp)\n",
            "scripts/setup": "", "bench/run": "print('benchmarks:\\n  NAME\\n    step  Steps\\n --quick')\n",
            "include/fsdp/a.h": "int fully_shard; // FSDP_LOG\n", "docs/a.md": "# A title, `code`\n\n```\n# no title\n```\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "bin").mkdir()
        (root / "bin" / "fsdp").write_text("#!/bin/sh\ncase $1 in --help) echo Subcommands:; echo '  ckpt  Look';; *) "
                                           "echo '  --json  Print';; esac\n")
        (root / "bin" / "fsdp").chmod(0o755)
        self.commands = Commands(root, root / "bin", {"unit.env", "sharding.parity"}, {"unit"})
        self.names = Names(root, {"unit.env", "sharding.parity"}, self.commands)

    def tearDown(self):
        self.folder.cleanup()

    def found(self, code):
        return [message for _, words in split_commands(code) for message in self.commands.check(words)]

    def test_good_commands(self):
        good = ("make build TARGET=fsdp JOBS=4   # a remark\nFSDP_LOG=1 make test && cd x | grep 'a b' > out\n"
                "torchrun --n 2 \\\n  build/bin/fsdp ckpt --json\nctest --test-dir build -R unit.e -L unit\n"
                "my_program --ranks 4\nbench/run step --quick\nscripts/setup")
        self.assertEqual(self.found(good), [])
        self.assertEqual(self.commands.checked, 10)
        self.assertEqual(self.found("$ make test\nmake: anything\n$ make build"), [])

    def test_bad_commands(self):
        for code, words in (("make tset", "no target tset"), ("make test JOBZ=2", "no variable JOBZ"),
                            ("make build TARGET=fsdb", "no target fsdb"), ("ctest -R unit.evn", "no test matches"),
                            ("ctest -L units", "no label"), ("bench/run stop", "knows no 'stop'"),
                            ("bench/run step --quack", "no option --quack"), ("scripts/setupp", "no scripts/setupp"),
                            ("fsdp ckp inspect", "knows no 'ckp'"), ("fsdp ckpt --yson", "no option --yson"),
                            ("mpirun -n 2 build/release/bin/fsbp", "no program fsbp"), ("mkae test", "unknown command"),
                            ("A=1 make test; make tset", "no target tset"), ("make \\\n tset", "no target tset")):
            found = self.found(code)
            self.assertEqual(len(found), 1, (code, found))
            self.assertIn(words, found[0])

    def test_which_blocks_are_shell(self):
        for code in ("make test", "FSDP_LOG=1 build/bin/a", "fsdp ckpt", "./train --ranks 2", "$ git clone"):
            self.assertTrue(is_shell(code), code)
        for code in ("runs/gpt/\n  latest", '{"a":1}', "step 1  loss 2", "fsdp::error: a", "rank 0's units", ""):
            self.assertFalse(is_shell(code), code)

    def test_names_in_sentences(self):
        good = ("`make test`, `unit.env`, `scripts/setup`, `fsdp::fully_shard()`, `FSDP_LOG`, `include/fsdp`, `x.y`\n"
                "[a](docs/a.md#a-title-code) [b](https://x.y/z) [c](docs/a.md) `a.h`\n```\n`make nothing`\n```\n")
        self.assertEqual(self.names.check("README.md", good), [])
        for bad, words in (("`make tset`", "no target"), ("`unit.evn`", "no such test"), ("`src/b.cpp`", "no such file"),
                           ("`fsdp::fully_shart`", "occurs nowhere"), ("`FSDP_LOK=1`", "occurs nowhere"),
                           ("[a](docs/b.md)", "leads nowhere"), ("[a](docs/a.md#no-title)", "no title")):
            found = self.names.check("README.md", f"line\n{bad}")
            self.assertEqual(len(found), 1, (bad, found))
            self.assertIn("README.md:2: ", found[0])
            self.assertIn(words, found[0])

    def test_breaches_are_named_with_their_lines(self):
        root = Path(self.folder.name)
        (root / "a.cpp").write_text("int a;\n")
        for text, place in ((page("<!-- block: from a.cpp -->", ("cpp", "int b;")), "README.md:3: a.cpp has no line"),
                            (page("<!-- block: from b.cpp -->", ("cpp", "int b;")), "README.md:3: there is no b.cpp"),
                            (page(("sh", "make test\nmake tset")), "README.md:3: the Makefile has no target"),
                            (page(("json", "{")), "README.md:2: JSON"), (page(("text", "TODO")), "README.md:2: something"),
                            (page(("c++", "int a;")), "README.md:2: unknown language"), ("```cpp", "README.md:1: the block"),
                            (page("", ("python", "(")), "README.md:3: line 1")):
            (root / "README.md").write_text(text)
            found, _ = check_blocks.check(root, root / "bin", {"unit.env"}, {"unit"}, CMAKE)
            self.assertEqual(len(found), 1, (text, found))
            self.assertTrue(found[0].startswith(place), found)

    def test_kinds(self):
        blocks = parse_blocks(page(("cpp", "a"), ("", "make test"), ("", '{"a":1}'), ("", "runs/"), ("text", "make test"),
                                   ("sh", "anything"), "<!-- block: from a -->", ("cpp", "a")), "p.md")
        self.assertEqual([check_blocks.kind_of(b) for b in blocks],
                         ["C++, compiled", "shell", "JSON", "not checked", "not checked", "shell", "quoted from built files"])

    def test_slug(self):
        self.assertEqual(slug("Freeze, LoRA: `a_b` and C++"), "freeze-lora-a_b-and-c")


if __name__ == "__main__":
    CXX, CMAKE = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
