"""hangs_test.py FSDP: a rank of `fsdp train` is stopped (SIGSTOP). The others say so, and the run goes on
with it, or ends."""

import json
import os
import pty
import signal
import subprocess
import threading
import time

from runs import FSDP, RunTest, kill, main, ranks_below, wait_until

SETS = ["training.max_steps=100000", "checkpoint.every_steps=50", "checkpoint.keep_last=2", "eval.every_steps=50"]
TIMEOUT = 6


def descendants(pid):
    below = ranks_below(pid)
    return below + [one for child in below for one in descendants(child)]


def variable(pid, name):
    """A variable of a process's environment, or None."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = dict(one.split(b"=", 1) for one in file.read().split(b"\0") if b"=" in one)
    except OSError:
        return None
    return found.get(name.encode(), b"").decode()


def worker_of(launcher, rank):
    """The process of a rank, once it is there."""
    for pid in descendants(launcher):
        try:
            name = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            continue
        if name.endswith("fsdp-worker") and variable(pid, "RANK") == str(rank):
            return pid
    return None


class Hangs(RunTest):
    def steps_done(self, run):
        path = self.folder / run / "metrics.jsonl"
        return path.read_text().count('"kind":"step"') if path.exists() else 0

    def stop_at(self, process, run, step, rank, output):
        wait_until(lambda: process.poll() is not None or self.steps_done(run) >= step, 120)
        worker = worker_of(process.pid, rank)
        self.assertIsNotNone(worker, output())
        os.kill(worker, signal.SIGSTOP)
        return worker

    def status(self, run):
        done = subprocess.run([FSDP, "ctl", run, "status", "--json"], cwd=self.folder, env=self.environment(), text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def on_terminal(self, command):
        """Starts a command whose stderr is a terminal of 200 columns. Returns the process and what it shows."""
        ours, theirs = pty.openpty()
        subprocess.run(["stty", "cols", "200"], stdin=theirs, check=True)
        shown = []

        def read():
            try:
                while data := os.read(ours, 65536):
                    shown.append(data.decode(errors="replace"))
            except OSError:
                pass  # the other end was closed

        environment = self.environment() | {"TERM": "xterm"}
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=theirs,
                                   start_new_session=True)
        os.close(theirs)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        return process, shown, reader

    def test_the_live_line_and_the_log_name_it(self):
        command = self.command("shown", *SETS, "distributed.timeout=300", ranks=2)
        process, shown, reader = self.on_terminal(command)
        try:
            worker = self.stop_at(process, "shown", 5, rank=1, output=lambda: "".join(shown))
            wait_until(lambda: "waiting for rank 1 (host " in "".join(shown), 60)
            log = self.folder / "shown" / "logs" / "rank-0.log"
            wait_until(lambda: "has waited since" in log.read_text(), 60)
            self.assertIn("its process is stopped", log.read_text())
            self.assertEqual(log.read_text().count("has waited since"), 1)
            self.assertIn("rank 1 (host ", self.status("shown")["waiting"])
            os.kill(worker, signal.SIGCONT)
            wait_until(lambda: " goes on, after " in log.read_text(), 60)
            self.assertEqual(self.status("shown")["waiting"], "")
            before = self.steps_done("shown")
            wait_until(lambda: self.steps_done("shown") > before, 60)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        finally:
            kill([*descendants(process.pid), process.pid])
            process.wait()
            reader.join(timeout=10)

    def test_the_run_ends_after_the_timeout(self):
        process = self.start("ends", *SETS, f"distributed.timeout={TIMEOUT}", ranks=4)
        try:
            self.stop_at(process, "ends", 5, rank=2, output=self.log)
            began = time.monotonic()
            self.assertNotEqual(process.wait(timeout=100), 0)
        finally:
            kill([*descendants(process.pid), process.pid])
        print(f"ended {time.monotonic() - began:.1f} s after the rank was stopped (timeout {TIMEOUT} s)")
        self.assertIn("rank 2 (host ", self.log())
        self.assertIn("its process is stopped", self.log())


if __name__ == "__main__":
    main()
