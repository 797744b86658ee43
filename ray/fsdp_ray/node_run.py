"""`fsdp run` as a child of a Ray worker: it ends with the worker, and leaves its exit code and the cause of a failure."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque

REQUEUE = 75  # the ranks were asked to end, have saved, and may be started again
PEER_LOST = 5
KEPT_LINES = 400


class NodeRun:
    """The ranks of this node. The thread that makes it must live as long as they: they are killed when it ends."""

    def __init__(self, words, variables, folder, on_end=None):
        """Starts `words`. `on_end(node_run)` is called by another thread after the end."""
        self.code = None   # the exit code; None: it runs
        self.cause = ""    # of a failure, as `fsdp run` reports it
        self.ended = threading.Event()
        self._on_end = on_end
        self._lines = deque(maxlen=KEPT_LINES)
        self._process = subprocess.Popen(words, env=variables, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                         preexec_fn=die_with(os.getpid()))
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def pid(self):
        return self._process.pid

    def succeeded(self):
        return self.code in (0, REQUEUE)

    def stop(self, patience=4):
        """Asks the ranks to finish their step, save and leave. What still runs after `patience` seconds is killed."""
        if not self.ended.is_set():
            self._process.send_signal(signal.SIGTERM)
        if not self.ended.wait(patience):
            self.kill()

    def kill(self):
        # A guardian of `fsdp run` kills its ranks with it.
        self._process.kill()
        self.ended.wait()

    def _watch(self):
        out = threading.Thread(target=self._pass_on, args=(self._process.stdout, sys.stdout, None), daemon=True)
        err = threading.Thread(target=self._pass_on, args=(self._process.stderr, sys.stderr, self._lines), daemon=True)
        for thread in (out, err):
            thread.start()
        code = self._process.wait()
        for thread in (out, err):
            thread.join(2)  # a process that the ranks left behind may hold the pipe
        code = 128 - code if code < 0 else code
        self.cause = "" if code in (0, REQUEUE) else find_cause(list(self._lines), code)
        self.code = code
        self.ended.set()
        if self._on_end:
            self._on_end(self)

    @staticmethod
    def _pass_on(source, target, kept):
        with source:
            for line in source:
                target.write(line)
                target.flush()
                if kept is not None:
                    kept.append(line.rstrip("\n"))


def die_with(parent):
    """For the child before it becomes the program: the kernel kills it when the thread that started it ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    PR_SET_PDEATHSIG = 1

    def in_child():
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it has ended meanwhile

    return in_child


def find_cause(lines, code):
    """What `fsdp run` reports in the end: "rank 1 of 4 on node7 ended with ..." and the lines after it."""
    reports = [i for i, line in enumerate(lines) if re.match(r"fsdp: (ranks? \d|stopped by )", line)]
    reports = reports or [i for i, line in enumerate(lines) if line.startswith("fsdp: ")]
    if reports:
        return "\n".join(lines[reports[-1]:]).removeprefix("fsdp: ")
    last = "\n".join(lines[-20:])
    return f"`fsdp run` on {socket.gethostname()} ended with exit code {code}" + (f":\n{last}" if last else "")


def is_consequence(end):
    """Does the end of a node's ranks say that the cause is on another node?"""
    return end["code"] == PEER_LOST


def first_cause(ends):
    """Of the ends of nodes, {"node", "code", "cause"} in the order in which they were told, the one that made the others fail.

    None: no node has failed.
    """
    failed = [end for end in ends if end["cause"]]
    return next((end for end in failed if not is_consequence(end)), failed[0] if failed else None)
