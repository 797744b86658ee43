"""Hosts for tests: network namespaces of this machine, joined by veth pairs. Needs root and iproute2.

A host has an address of its own, and its processes reach the others through its link only. Its ranks get FSDP_HOST_ID
and a host name, since all processes share the machine's memory.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys

SKIPPED = 77
NETWORK = "10.77.0"
NUMBERS = itertools.count()  # so that names differ within this process


def require_namespaces():
    """Ends the test where namespaces cannot be made."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        print("missing package: iproute2, util-linux")
        sys.exit(SKIPPED)
    probe = f"fsdp{os.getpid()}p"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        print("missing package: a kernel and a user (root) that may make network namespaces")
        sys.exit(SKIPPED)
    subprocess.run(["ip", "netns", "del", probe], check=True)


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """`count` hosts. Two share one veth pair; more are joined by a bridge."""

    def __init__(self, count):
        self.count = count
        self.made = []
        self.name = f"fsdp{os.getpid()}n{next(NUMBERS)}"
        try:
            names = [self.make(f"h{i}") for i in range(count)]
            switch = self.make("sw") if count > 2 else None
            if switch is None:
                ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
            else:
                ip("-n", switch, "link", "add", "bridge", "type", "bridge")
                ip("-n", switch, "link", "set", "bridge", "up")
            for i, name in enumerate(names):
                if switch is not None:
                    ip("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"port{i}", "netns", switch)
                    ip("-n", switch, "link", "set", f"port{i}", "master", "bridge", "up")
                ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "wire")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "wire", "up")
        except Exception:
            self.close()
            raise

    def make(self, suffix):
        name = self.name + suffix
        ip("netns", "add", name)
        self.made.append(name)
        return name

    def close(self):
        while self.made:
            ip("netns", "del", self.made.pop())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    @staticmethod
    def address(host):
        return f"{NETWORK}.{host + 1}"

    def command(self, host, words):
        """A command line that runs `words` on the host."""
        named = 'hostname "$0" && exec "$@"'
        return ["ip", "netns", "exec", self.made[host], "unshare", "--uts", "sh", "-c", named, f"host{host}", "env",
                f"FSDP_HOST_ID=host{host}", *map(str, words)]

    def sent(self, host):
        """The bytes that the host has sent to others so far."""
        link = json.loads(ip("-n", self.made[host], "-s", "-j", "link", "show", "wire"))[0]
        return link["stats64"]["tx"]["bytes"]

    def cut(self, host):
        ip("-n", self.made[host], "link", "set", "wire", "down")

    def mend(self, host):
        ip("-n", self.made[host], "link", "set", "wire", "up")
