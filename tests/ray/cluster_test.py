"""cluster_test.py FSDP: all tests that need a real Ray cluster, on one. FSDP_TEST_VERBOSE=1 shows what the workers print."""

import sys
import time
import unittest

from causes_test import Causes
from failures_test import Drivers, Kills, Preemption  # noqa: F401
from trainer_test import Elastic, Handle, Tasks, Trainer


def load_tests(loader, _tests, _pattern):
    """The cluster begins with one node, and has more from then on. Preemption, which waits long, runs when it is named."""
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (Elastic, Trainer, Handle, Tasks, Causes, Drivers, Kills)))


if __name__ == "__main__":
    begin = time.monotonic()
    program = unittest.main(exit=False)
    print(f"ray.cluster: {program.result.testsRun} tests: {time.monotonic() - begin:.1f} s")
    sys.exit(not program.result.wasSuccessful())
