"""causes_test.py FSDP WORKER: ten kinds of failure of one rank in four under `fsdp run`. The first line about a failure that
the user reads names the right rank and the right cause."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from command import FSDP, main
from training import FOREVER, NUMERIC, RENDEZVOUS, STORAGE, USAGE, TrainTest, environment, wait_until

COMPLAINT = re.compile(r"died|failed after|lost|did not|CommError|was started with|ended with|was killed")
SEGV, KILL = 128 + signal.SIGSEGV, 128 + signal.SIGKILL


class Cgroup:
    """A memory limit of 100 MB. `exists` is False where this process may not make one."""

    def __init__(self):
        self.folder = Path(f"/sys/fs/cgroup/memory/fsdp-test-{os.getpid()}")
        limit = "memory.limit_in_bytes"
        if not self.folder.parent.is_dir():
            self.folder, limit = Path(f"/sys/fs/cgroup/fsdp-test-{os.getpid()}"), "memory.max"
        try:
            self.folder.mkdir()
            (self.folder / limit).write_text("100000000")
            self.exists = (self.folder / "cgroup.procs").exists()
        except OSError:
            self.exists = False

    def remove(self):
        if self.folder.is_dir():
            wait_until(lambda: not (self.folder / "cgroup.procs").read_text(), "the end of a process")
            self.folder.rmdir()


class Causes(TrainTest):
    def run_four(self, code, script, *words, options=()):
        """stderr of four ranks of a shell script, in which $0 is the command and "$@" its arguments."""
        command = [FSDP, "run", "--nproc-per-node", "4", *options, "sh", "-c", script, *map(str, words)]
        done = subprocess.run(command, env=environment(), cwd=self.folder, text=True, capture_output=True, timeout=100)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def is_caused_by(self, text, rank, *says):
        """The first failure in `text` is the report's, or what the rank at fault says itself."""
        own = (f"[rank {rank}]", f"fsdp: rank {rank} ")
        about = [line for line in text.splitlines() if COMPLAINT.search(line) or line.startswith(own)]
        self.assertTrue(about and about[0].startswith(own), text)
        report = text[re.search("^fsdp: rank . of 4 on ", text, re.MULTILINE).start():]
        self.assertTrue(report.startswith(f"fsdp: rank {rank} "), text)
        self.says(report.split("\nthen ")[0], *says)  # what follows from it comes later

    def one_differs(self, code, rank, *words, of=()):
        script = f'[ $RANK = {rank} ] && set -- "$@" {" ".join(words)}; exec "$0" "$@"'
        return self.run_four(code, script, *self.words(*of))

    def test_bad_configuration(self):
        text = self.one_differs(USAGE, 2, "--set", "optimizer.lr=fast")
        self.is_caused_by(text, 2, "ended with exit code 2", "optimizer.lr", "fast")

    def test_a_mistake_of_all_ranks_is_told_once(self):
        text = self.run_four(USAGE, 'exec "$0" "$@"', *self.words("--set", "optimizer.lr=fast"))
        self.assertEqual(text.count("found 'fast'"), 1, text)
        self.assertRegex(text, r"\nthen ranks [0-9, -]+ ended with exit code 2 and the same message\n")

    def test_another_configuration(self):
        text = self.one_differs(USAGE, 2, "--set", "optimizer.lr=0.5")
        self.is_caused_by(text, 2, "ended with exit code 2", "optimizer.lr: found 0.5 on rank 2, but rank 0 has 0.01")

    def test_missing_file(self):
        here = self.folder / "here"
        here.mkdir()
        (here / "text.txt").write_text("Some words to train on. " * 400)
        text = self.run_four(USAGE, '[ $RANK = 1 ] || cd here; exec "$0" "$@"', *self.words("--set", "data.format=text", "--set",
                                                                                           "data.train=text.txt"))
        self.is_caused_by(text, 1, "ended with exit code 2", "text.txt")

    def test_out_of_memory(self):
        group = Cgroup()
        self.addCleanup(group.remove)
        eats = f"echo $$ >{group.folder}/cgroup.procs; exec python3 -c 'bytearray(10**9)'" if group.exists else "kill -9 $$"
        text = self.run_four(KILL, f'[ $RANK = 3 ] || exec sleep 60; {eats}')
        self.is_caused_by(text, 3, "was ended by SIGKILL (signal 9)", "out-of-memory killer")

    def test_segmentation_fault(self):
        sanitizers = {name: os.environ.get(name, "") + ":handle_segv=0" for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")}
        process = self.start_and_wait(words=[FSDP, "run", "--nproc-per-node", "4", *self.words(*FOREVER)],
                                      env=environment(**sanitizers))
        os.kill(self.ranks()[2], signal.SIGSEGV)
        self.assertEqual(process.wait(60), SEGV, self.output())
        self.is_caused_by(self.output(), 2, "crashed with SIGSEGV (signal 11)")

    def test_exception(self):
        text = self.run_four(1, '[ $RANK = 1 ] || exec sleep 60; exec python3 -c \'raise RuntimeError("no more data")\'')
        self.is_caused_by(text, 1, "ended with exit code 1", "RuntimeError: no more data")

    def test_exit(self):
        text = self.run_four(3, '[ $RANK = 3 ] || exec sleep 60; echo out of patience >&2; exit 3')
        self.is_caused_by(text, 3, "ended with exit code 3", "out of patience")

    def test_not_finite(self):
        text = self.run_four(NUMERIC, 'exec "$0" "$@"', *self.words(
            "--set", "optimizer.lr=1000", "--set", "training.max_skipped_steps=0", "--set", "optimizer.name=sgd", "--set",
            "training.gradient_clipping=0", "--set", "training.max_steps=200"))
        rank = re.search(r"^fsdp: rank (\d)", text, re.MULTILINE)[1]  # all of them stop in that step
        self.is_caused_by(text, rank, "ended with exit code 6", "1 steps in a row had gradients that are not finite")

    def test_port_in_use(self):
        with socket.socket() as used:
            used.bind(("127.0.0.1", 0))
            used.listen()
            port = str(used.getsockname()[1])
            text = self.run_four(USAGE, 'exec "$0" "$@"', *self.words(), options=("--master-port", port))
        self.says(text.splitlines()[0], "fsdp: ", port, "in use")

    def test_a_rank_that_never_arrives(self):
        text = self.run_four(RENDEZVOUS, '[ $RANK = 3 ] && exec sleep 60; exec "$0" "$@"',
                             *self.words("--set", "distributed.timeout=4"))
        head, message = re.search(r"^fsdp: rank . of 4 on (.*)\n(.*)", text, re.MULTILINE).groups()
        self.assertTrue(head.endswith("ended with exit code 4, because of rank 3"), text)
        self.says(message, "3 of 4 ranks came within ", "missing: rank 3")

    def test_disk_full(self):
        if os.geteuid() != 0:
            return  # mounting is for root
        full = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, full)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", full], capture_output=True).returncode != 0:
            return
        self.addCleanup(subprocess.run, ["umount", "-l", full])
        self.run_folder = full / "run"
        text = self.run_four(STORAGE, 'exec "$0" "$@"', *self.words())
        rank = re.search(r"^fsdp: rank (\d)", text, re.MULTILINE)[1]
        self.is_caused_by(text, rank, "ended with exit code 7", "No space left on device", f"{full}/run/")


if __name__ == "__main__":
    main()
