"""Connections that do not belong to a run: port scans, HTTP, garbage, silence, ranks of other jobs."""

import os
import socket
from pathlib import Path

# What programs send that take a port for another one: a browser, a TLS client, a Redis client, ssh, noise.
OPENINGS = (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
            b"*1\r\n$4\r\nPING\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 4096, b"\xff" * 4096, b"\n" * 100, b"{}\n",
            b'{"is": "hello"}\n', b'{"is": 1, "run": []}\n', b"[" * 100_000, None)


def listening(pid):
    """{(address, port)} at which a process listens for TCP."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except OSError:
            pass  # closed meanwhile
    found = set()
    for version, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                number, port = words[1].split(":")
                raw = b"".join(bytes.fromhex(number[i:i + 8])[::-1] for i in range(0, len(number), 8))
                found.add((socket.inet_ntop(version, raw), int(port, 16)))
    return found


def connect(address):
    try:
        return socket.create_connection(address, timeout=5)
    except OSError:
        return None  # it has ended, or does not want more


def listens(address):
    probe = connect(address)
    if probe is not None:
        probe.close()
    return probe is not None


def disturb(address, times=3):
    """Does to a listening port what strangers do. Returns connections that stay open, silent."""
    for _ in range(times):
        for opening in OPENINGS:
            stranger = connect(address)
            if stranger is None:
                continue
            with stranger:
                try:
                    stranger.sendall(opening if opening is not None else os.urandom(20_000))
                except OSError:
                    pass  # closed by the other side: right
        for _ in range(20):
            scan = connect(address)
            if scan:
                scan.close()
    return [one for one in (connect(address) for _ in range(50)) if one]
