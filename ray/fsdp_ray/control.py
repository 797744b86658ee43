"""The control socket of a run: rank 0 listens on loopback of its node, and control.json in the run's folder says where."""

import json
import socket
from pathlib import Path


class NoRun(Exception):
    """Nobody answers for the run: it has not begun, or has ended."""


def ask(folder, do, timeout=600):
    """The answer of rank 0 to `do`: status, metrics, save or stop. Works on the node of rank 0 only.

    save and stop are answered when the checkpoint is complete. Throws NoRun, and RuntimeError if rank 0 refuses.
    """
    path = Path(folder) / "control.json"
    try:
        where = json.loads(path.read_text())
        with socket.create_connection((where["host"], where["port"]), timeout=timeout) as connection:
            connection.sendall(json.dumps({"token": where["token"], "do": do}).encode() + b"\n")
            line = connection.makefile("rb").readline()
    except (OSError, ValueError, KeyError) as error:
        raise NoRun(f"the run in {folder} does not answer: {error}. It has not begun, or has ended") from None
    if not line:
        raise NoRun(f"the run in {folder} ended before it answered to {do}")
    answer = json.loads(line)
    if not answer.pop("ok", False):
        raise RuntimeError(f"{do}: {answer.get('error', 'refused')}")
    return answer
