"""Names in the sentences of pages: commands, ctest entries, files, links, fsdp:: names and FSDP_ variables."""

import re
from pathlib import Path

FENCE = re.compile(r"^(\s*)(```+|~~~+).*?^\s*\2[`~]*\s*?$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
COMMAND = re.compile(r"(make|ctest|fsdp ckpt|bench/run|\.ci/|scripts/|build/(\w+/)?bin/)")
TEST = re.compile(r"[a-z]+\.[a-z0-9_]+$")
FILE = re.compile(r"(app|bench|cmake|docs|examples|include|models|scripts|src|tests)/[\w./-]*$")


def sentences(text):
    """(line, text) outside of blocks."""
    text = FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)
    return list(enumerate(text.split("\n"), 1))


def slug(title):
    """GitHub's anchor of a title."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


class Names:
    """What exists in the tree `root` with the ctest entries `tests`."""

    def __init__(self, root, tests, commands):
        self.root, self.tests, self.commands = Path(root), set(tests), commands
        self.suites = {test.partition(".")[0] for test in tests}
        self.public = self._words("include/**/*.h", "models/**/*.h", "cmake/*")
        self.all = self.public | self._words("src/**/*", "CMakeLists.txt", "Makefile", "scripts/*", "tests/**/*.txt",
                                             "tests/**/*.cpp", "tests/**/*.h", "tests/**/*.py", "tests/**/*.sh", "cmake/*",
                                             "examples/**/*.cpp", "bench/**/*", "app/**/*")
        self.checked = 0

    def _words(self, *patterns):
        files = {path for pattern in patterns for path in self.root.glob(pattern) if path.is_file()}
        return {word for path in files if path.suffix != ".md"
                for word in re.findall(r"\w+", path.read_text(encoding="utf-8", errors="ignore"))}

    def check(self, page, text):
        """Messages about names that do not exist."""
        found = []
        for line, sentence in sentences(text):
            for span in SPAN.findall(sentence):
                found += [f"{page}:{line}: `{span}`: {message}" for message in self._span(span)]
            for target, anchor in LINK.findall(sentence):
                found += [f"{page}:{line}: {message}" for message in self._link(page, target, anchor)]
        return found

    def _span(self, span):
        if COMMAND.match(span):
            self.checked += 1
            return self.commands.check(span.split()) if "..." not in span else []
        if FILE.match(span):
            self.checked += 1
            return [] if (self.root / span).exists() or list(self.root.glob(span + "*")) else ["no such file"]
        suite = span.partition(".")[0]
        if TEST.match(span) and suite in self.suites and not span.endswith((".h", ".md", ".py", ".cpp")):
            self.checked += 1
            return [] if span in self.tests else ["no such test"]
        names = [name for name in re.findall(r"\bfsdp::(\w+)", span) if name not in self.public]
        names += [name for name in re.findall(r"\bFSDP_\w+", span) if name not in self.all and not name.endswith("_")]
        self.checked += 1
        return [f"{name} occurs nowhere" for name in names]

    def _link(self, page, target, anchor):
        self.checked += 1
        path = (self.root / page).parent / target if target else self.root / page
        if not path.exists():
            return [f"the link to {target} leads nowhere"]
        if anchor and path.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
            if anchor not in {slug(title) for title in titles}:
                return [f"{target or page} has no title #{anchor}"]
        return []
