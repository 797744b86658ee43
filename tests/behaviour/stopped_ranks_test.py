"""Promise: a rank that is killed, or whose disk fails, at any system call of a save leaves a checkpoint that is whole.

stopped_ranks_test.py SAVING_RANK: two real ranks save. strace kills one of them at a chosen system call, or makes the
call fail. Then what save() said was saved is still there, or something newer, whole; and the next save works.
FSDP_LONG=1: at every system call that touches the run's folder. Otherwise at a few, chosen by FSDP_SEED.
"""

import collections
import concurrent.futures
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

SAVING_RANK = sys.argv[1]
RANKS = 2
CALLS = "openat,fallocate,pwrite64,fsync,close,flock,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,getdents64"
# What can fail, besides a process: for want of room, and because a device does.
ERRORS = {"openat": ["EIO", "ENOSPC"], "fallocate": ["ENOSPC"], "pwrite64": ["EIO", "ENOSPC"], "fsync": ["EIO"],
          "close": ["EIO"], "rename": ["EIO", "ENOSPC"], "mkdir": ["EIO", "ENOSPC"], "unlink": ["EIO"], "rmdir": ["EIO"]}
SAMPLE = 8
DEADLINE = 60  # seconds of one run
LONG = os.environ.get("FSDP_LONG") == "1"
SEED = int(os.environ.get("FSDP_SEED", "1"))

Point = collections.namedtuple("Point", "rank call number action place")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(size, words, traced=None, strace=()):
    """What the ranks printed, and the exit code of the one that is traced, or of rank 0."""
    port = free_port()
    started = []
    for rank in range(size):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1",
                            "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [*(strace if rank == traced else ()), SAVING_RANK, *map(str, words)]
        started.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    printed = []
    try:
        for one in started:
            printed.append(one.communicate(timeout=DEADLINE)[0])
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
                one.communicate()
    return "\n".join(printed), started[traced or 0].returncode


def touched(line, folder):
    """The system call that a line of strace begins, and what it touches below `folder`; None where it touches nothing."""
    found = re.match(r"(\w+)\((.*)", line)
    if not found:
        return None, None
    place = re.search(re.escape(str(folder)) + r"([^\">, ]*)", found[2])
    return found[1], place and re.sub(r"-[0-9a-f]{16}\b", "-id", place[1]) or (place and "/")


def points_of(rank, base, work):
    """Every system call of the main thread of a rank that touches the run's folder, in two saves."""
    folder, log = work / f"dry-{rank}", work / f"dry-{rank}.strace"
    shutil.copytree(base, folder)
    text, code = run_ranks(RANKS, [folder, "save", 2], rank, ["strace", "-y", "-e", f"trace={CALLS}", "-o", log])
    if code != 0:
        raise SystemExit(f"the run without a fault failed:\n{text}")
    numbers, points = collections.Counter(), []
    for line in log.read_text(errors="replace").splitlines():
        call, place = touched(line, folder)
        if call is None:
            continue
        numbers[call] += 1
        if place:
            for action in ["SIGKILL", *ERRORS.get(call, [])]:
                points.append(Point(rank, call, numbers[call], action, place))
    return points


def fault(point):
    what = f"signal={point.action}" if point.action.startswith("SIG") else f"error={point.action}"
    return f"inject={point.call}:{what}:when={point.number}"


def step_of(text):
    found = re.findall(r"^step (\d+)$", text, re.MULTILINE)
    return int(found[-1]) if found else None


def try_point(point, base, work, index):
    """None if all is well, or what is wrong; and where below the run's folder the fault struck."""
    folder, log = work / f"run-{index}", work / f"run-{index}.strace"
    shutil.copytree(base, folder)
    strace = ["strace", "-y", "-e", f"trace={CALLS}", "-e", fault(point), "-o", log]
    try:
        text, code = run_ranks(RANKS, [folder, "save", 2], point.rank, strace)
    except subprocess.TimeoutExpired:
        return f"{point}: the other rank was not told within {DEADLINE} s", None
    lines = log.read_text(errors="replace").splitlines()
    struck = [line for line in lines if "(INJECTED)" in line or re.search(r"= \?$", line)]
    place = touched(struck[0], folder)[1] if struck else None
    saved = [2] + [int(step) for step in re.findall(r"^saved (\d+)$", text, re.MULTILINE)]
    checked, code = run_ranks(1, [folder, "check"])
    step = step_of(checked)
    if code != 0 or step is None:
        return f"{point}: what is left cannot be loaded:\n{text}\n{checked}", place
    if not saved[-1] <= step <= 4:
        return f"{point}: step {saved[-1]} was saved, but step {step} is there", place
    outcomes = re.findall(r"^(saved|not saved)", text, re.MULTILINE)
    if not point.action.startswith("SIG") and outcomes.count("not saved") > 1:
        return f"{point}: more than one save failed:\n{text}", place
    text, code = run_ranks(1, [folder, "save", 1])
    if code != 0 or f"saved {step + 1}" not in text:
        return f"{point}: the next save failed:\n{text}", place
    left = [name for name in os.listdir(folder) if name.startswith((".saving", ".removing"))]
    if left:
        return f"{point}: {left} were left", place
    shutil.rmtree(folder)
    log.unlink()
    return None, place


def main():
    probe = subprocess.run(["strace", "-e", "trace=none", "true"], capture_output=True, text=True) if shutil.which("strace") else None
    if probe is None or probe.returncode != 0:
        print("skipped: strace is not installed, or may not trace here")
        return 77
    work = Path(tempfile.mkdtemp(prefix="fsdp-stopped-"))
    try:
        base = work / "base"
        text, code = run_ranks(RANKS, [base, "save", 2])
        if code != 0:
            raise SystemExit(text)
        points = [point for rank in range(RANKS) for point in points_of(rank, base, work)]
        all_of_them = len(points)
        if not LONG:
            points = random.Random(SEED).sample(points, SAMPLE)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda item: try_point(item[1], base, work, item[0]), enumerate(points)))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    wrong = [words for words, _ in results if words]
    struck = sum(place is not None for _, place in results)
    actions = collections.Counter(point.action for point in points)
    print(f"seed {SEED}: {len(points)} of {all_of_them} points, {struck} struck a system call on the run's folder: {dict(actions)}")
    for words in wrong:
        print(f"wrong: {words}")
    enough = struck >= (200 if LONG else SAMPLE / 2)  # how often a rank closes files varies a little
    if not enough:
        print(f"wrong: faults that did not strike: {[point for point, (_, place) in zip(points, results) if place is None]}")
    return 1 if wrong or not enough else 0


if __name__ == "__main__":
    sys.exit(main())
