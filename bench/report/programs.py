"""Finds, builds and runs the programs a benchmark compares, and reads the JSON lines they print."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"


class BenchError(Exception):
    """The benchmark cannot go on; the message says what to do."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def cores():
    return len(os.sched_getaffinity(0))


def our_program(folder, name):
    path = ROOT / folder / name
    if not path.exists():
        raise BenchError(f"{folder}/{name} is missing: run `make build` first")
    return path


def build_commit(commit, name):
    """Our program as it was at `commit`, built in a tree of its own under build/before."""
    name_commit = ["git", "-C", ROOT, "rev-parse", "--short", "--verify", "--quiet", commit + "^{commit}"]
    found = subprocess.run(name_commit, capture_output=True, text=True)
    if found.returncode != 0:
        raise BenchError(f"there is no commit {commit}")
    tree = ROOT / "build" / "before" / found.stdout.strip()
    log = tree.with_suffix(".log")
    steps = [["cmake", "--preset", "release"], ["cmake", "--build", "build/release", "--target", name]]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "-C", ROOT, "worktree", "prune"], check=True)
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        (tree / ".venv").symlink_to(ROOT / ".venv")
    with open(log, "w") as out:
        for step in steps:
            say(f"bench/run: {commit}: {' '.join(step)}")
            if subprocess.run(step, cwd=tree, stdout=out, stderr=out).returncode != 0:
                raise BenchError(f"{commit} does not build: see {log}")
    return tree / "build" / "release" / "bin" / name


def has_torch(python):
    try:
        return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    except OSError:
        return False


@functools.cache
def peers_python(chosen=None):
    """The Python with full PyTorch: the chosen one, or that of the peers' environment, this one, or one made now."""
    if chosen:
        if not has_torch(chosen):
            raise BenchError(f"{chosen} has no PyTorch")
        return chosen
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    peers = os.environ.get("FSDP_PEERS") or os.path.join(cache, "fsdp", "peers")
    for python in (os.path.join(peers, "venv", "bin", "python"), sys.executable):
        if has_torch(python):
            return python
    return make_peers()


def make_peers():
    setup = ROOT / "scripts" / "setup-peers"
    if setup.exists():
        say("bench/run: making the peers' environment, once")
        lines = subprocess.run([setup], stdout=subprocess.PIPE, text=True).stdout.splitlines()
        if lines and has_torch(lines[-1]):
            return lines[-1]
    raise BenchError("no Python with PyTorch: run `make setup-peers` first, or pass --no-peers")


def mpi_program(name):
    """Compiles bench/peers/NAME.cpp with mpicxx into build/peers, once per change."""
    source, program = PEERS / f"{name}.cpp", ROOT / "build" / "peers" / name
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["mpicxx", "-O3", "-march=native", "-std=c++20", source, "-o", program], check=True)
    except FileNotFoundError:
        raise BenchError("no mpicxx: run `make setup-peers` first, or pass --no-peers") from None
    except subprocess.CalledProcessError:
        raise BenchError(f"{source.name} did not compile") from None
    return program


def mpirun(ranks):
    """The start of an mpirun command line. Ranks that share cores yield where they would spin."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    if ranks > cores():
        command += ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return command


def stop(process):
    """Ends a program and its process group, which is gone when nobody holds its output any more."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(name, command, timeout=1800):
    """Runs a program to its end and returns its JSON lines; a failure carries what it wrote to stderr."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stop(process)
        raise BenchError(f"{name} did not end within {timeout} s") from None
    except BaseException:
        stop(process)
        raise
    if process.returncode != 0:
        raise BenchError(f"{name} ended with status {process.returncode}; it wrote:\n{err or out}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


class Turns:
    """A program that says it is ready, then answers each line it gets with a JSON line."""

    def __init__(self, name, command):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        try:
            self.answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            stop(self.process)
        self.errors.close()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.end()
        raise BenchError(f"{self.name} ended too early")

    def turn(self):
        """Lets it take its next step; its line."""
        try:
            print(file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # the missing answer tells why
        return self.answer()

    def end(self, timeout=60):
        """Waits for its end, which is due."""
        if self.process.wait(timeout) != 0:
            self.errors.seek(0)
            raise BenchError(f"{self.name} ended with status {self.process.returncode}; it wrote:\n{self.errors.read()}")
