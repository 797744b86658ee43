"""skips_test.py CMAKE CTEST: a test that lacks a package is skipped, and fails with FSDP_STRICT_TESTS."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

MODULES = Path(__file__).parents[2] / "cmake"
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(skips LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "{MODULES}")
include(FsdpTests)
enable_testing()
foreach(words "missing package: libgloo-dev" "no GPU is visible")
  string(REGEX REPLACE "[^a-z]+" "_" name "${{words}}")
  file(WRITE "${{CMAKE_BINARY_DIR}}/${{name}}" "#!/bin/sh\\necho '${{words}}'\\n")
  file(CHMOD "${{CMAKE_BINARY_DIR}}/${{name}}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  fsdp_test(NAME case.${{name}} BINARY "${{CMAKE_BINARY_DIR}}/${{name}}" FILTER "*" LABELS unit)
endforeach()
add_test(NAME script COMMAND sh -c "exit 77")
fsdp_may_skip(script)
"""


class Skips(unittest.TestCase):
    def failed(self, strict):
        """The names of the tests that fail."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "CMakeLists.txt").write_text(PROJECT)
            build = Path(folder, "build")
            subprocess.run([CMAKE, "-S", folder, "-B", build, "-G", "Ninja", f"-DFSDP_STRICT_TESTS={strict}"], check=True,
                           capture_output=True)
            run = subprocess.run([CTEST, "--test-dir", build], capture_output=True, text=True)
            log = build / "Testing" / "Temporary" / "LastTestsFailed.log"
            failed = {line.split(":", 1)[1] for line in log.read_text().split()} if log.exists() else set()
            self.assertEqual(run.returncode != 0, bool(failed), run.stdout)
            return failed

    def test_a_missing_package_is_a_skip(self):
        self.assertEqual(self.failed("OFF"), set())

    def test_a_missing_package_fails_strict_tests(self):
        self.assertEqual(self.failed("ON"), {"case.missing_package_libgloo_dev", "script"})


if __name__ == "__main__":
    CMAKE, CTEST = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
