"""broken_configs_test.py FSDP: every broken config file is refused with exit code 2, its key and its line.

That takes the command less than 300 ms of processor time each. It starts no worker, and so loads no LibTorch.
"""

import collections
import os
import re
import resource
import subprocess
import time

from broken_configs import EACH, broken_configs
from config_files import CLEAN, FSDP, ConfigTest, main

KINDS = 6
MOST_SECONDS = 0.3
SANITIZED = bool(os.environ.get("FSDP_TEST_SANITIZED"))


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class BrokenConfigsTest(ConfigTest):
    def test_every_one_is_refused(self):
        worker = self.folder / "worker"
        worker.write_text(f"#!/bin/sh\ntouch {self.folder}/started\n")
        worker.chmod(0o755)
        counts, slowest, failures = collections.Counter(), 0, []
        began = time.monotonic()
        for broken in broken_configs():
            counts[broken.kind] += 1
            self.write(broken.text, "broken.yaml")
            before = children_seconds()
            done = self.start("train", "--dry-run", "--config", "broken.yaml", FSDP_WORKER=str(worker))
            slowest = max(slowest, children_seconds() - before)
            problem = self.problem(broken, done)
            if problem:
                failures.append(f"{broken.kind}, {broken.key}, lines {broken.lines}: {problem}\n{done.stderr}")
        print(f"{sum(counts.values())} broken configs in {time.monotonic() - began:.1f} s, at most "
              f"{1e3 * slowest:.0f} ms of processor time each")
        self.assertEqual(failures, [], f"{len(failures)} were not refused as they should\n" + "\n".join(failures[:10]))
        self.assertEqual(list(counts.values()), [EACH] * KINDS)
        self.assertFalse((self.folder / "started").exists())
        if not SANITIZED:
            self.assertLess(slowest, MOST_SECONDS)

    def problem(self, broken, done):
        if done.returncode != 2 or done.stdout:
            return f"exit code {done.returncode}"
        for line in done.stderr.splitlines():
            found = re.match(r"fsdp: broken\.yaml:(\d+): ([^:]+): (.+)", line)
            if found and int(found[1]) in broken.lines and found[2].split(".")[-1] == broken.key:
                missing = [words for words in broken.says if words not in found[3]]
                return f"it does not say {missing}" if missing else ""
        return "no line names the key and the line"

    def test_the_built_in_file_is_whole(self):
        self.write(self.accepted("config", "--example")[0], "whole.yaml")
        self.accepted("config", "--print", "--config", "whole.yaml")

    def test_printing_refuses_the_same(self):
        for broken in list(broken_configs())[::15]:
            self.write(broken.text, "broken.yaml")
            self.assertEqual(self.refused("config", "--print", "--config", "broken.yaml").splitlines()[-1],
                             self.refused("train", "--dry-run", "--config", "broken.yaml").splitlines()[-1])

    def test_no_libtorch(self):
        self.write("training: {batch_size: 0}\n")
        found = subprocess.run([FSDP, "train"], capture_output=True, text=True, cwd=self.folder,
                               env={**CLEAN, "LD_DEBUG": "files"})
        self.assertEqual(found.returncode, 2)
        self.assertIn("libc.so", found.stderr)
        for library in ("libtorch", "libc10", "libfsdp.so"):
            self.assertNotIn(library, found.stderr)


if __name__ == "__main__":
    main()
