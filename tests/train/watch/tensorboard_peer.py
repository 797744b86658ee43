"""tensorboard_peer.py WRITE_RUN: TensorBoard's own server reads our event files, over HTTP on the loopback device."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

WRITE_RUN = sys.argv[1]


class Server:
    def __init__(self, folder, loader):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", "0",
             f"--load_fast={loader}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.address = found[0]
                return
        raise RuntimeError("tensorboard has not started")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def get(self, path):
        with urllib.request.urlopen(f"{self.address}/data/{path}", timeout=30) as answer:
            return json.load(answer)

    def scalars(self, run, tag):
        """[[time, step, value], ...], once the server has loaded the run."""
        for _ in range(300):
            if tag in self.get("plugin/scalars/tags").get(run, {}):
                return self.get(f"plugin/scalars/scalars?run={run}&tag={tag}")
            time.sleep(0.1)
        raise RuntimeError(f"tensorboard knows {self.get('plugin/scalars/tags')}")


class TensorBoard(unittest.TestCase):
    def serve(self, loader, *runs):
        """Each of `runs`: its name, and the arguments of calls of write_run. Starts the server once all are written."""
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        files = {}
        for name, *calls in runs:
            folder = pathlib.Path(temp.name, name)
            folder.mkdir()
            for call in calls:
                written = subprocess.run([WRITE_RUN, folder, *map(str, call)], check=True, capture_output=True, text=True)
                files[name] = pathlib.Path(written.stdout.strip())
        if torn := files.get("torn"):
            torn.write_bytes(torn.read_bytes()[:-5])
        server = Server(temp.name, loader)
        self.addCleanup(server.close)
        return server

    def test_reads_runs_whole_torn_and_resumed(self):
        begin = time.time()
        server = self.serve("true", ("whole", [20]), ("torn", [20]), ("resumed", [20], [30, 12]))
        points = server.scalars("whole", "loss")
        self.assertEqual([step for _, step, _ in points], list(range(1, 21)))
        for written, step, value in points:
            self.assertAlmostEqual(value, 4 / step, delta=1e-6)
            self.assertTrue(begin - 1 <= written <= time.time() + 1)
        self.assertEqual({"loss", "lr"}, set(server.get("plugin/scalars/tags")["whole"]))
        self.assertEqual(len(server.scalars("torn", "loss")), 19)
        self.assertIn("<td>adamw</td>", json.dumps(server.get("plugin/text/text?run=whole&tag=config")))
        # The steps 13 to 20 of the first file were done again.
        self.assertEqual([step for _, step, _ in server.scalars("resumed", "loss")], list(range(1, 31)))

    def test_a_resume_drops_later_steps_even_if_the_next_one_is_later_still(self):
        """TensorBoard's loader in Python does: its fast loader compares steps only."""
        server = self.serve("false", ("sparse", [20], [30, 12, 25]))
        self.assertEqual([step for _, step, _ in server.scalars("sparse", "loss")], [*range(1, 13), 25])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
