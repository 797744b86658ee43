"""Collectives of CPU ranks on several hosts: ours against PyTorch's gloo and OpenMPI across the same links."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import comm, output, programs
from .output import rounded
from .programs import BenchError

sys.path.append(str(programs.ROOT / "tests" / "hosts"))

from namespaces import NETWORK, Hosts

OURS, GLOO, OPENMPI = "fsdp", "torch_gloo", "openmpi"
DEADLINE = 1800  # seconds of one program


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class HostsProgram(comm.Program):
    """One process per rank, each started on its host with torchrun's variables."""

    def __init__(self, impl, command, hosts, ranks):
        super().__init__(impl, command)
        self.hosts, self.ranks = hosts, ranks

    def processes(self, words):
        port, local = free_port(), self.ranks // self.hosts.count
        for rank in range(self.ranks):
            host = rank // local
            env = {"RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local,
                   "MASTER_ADDR": self.hosts.address(0), "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "wire",
                   "OMP_NUM_THREADS": 1, "FSDP_LOG": "warn"}
            yield subprocess.Popen(self.hosts.command(host, words), env=os.environ | {k: str(v) for k, v in env.items()},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines(self, words):
        started = list(self.processes(words))
        until = time.monotonic() + DEADLINE
        try:
            outputs = [one.communicate(timeout=max(1, until - time.monotonic())) for one in started]
        finally:
            for one in started:
                if one.poll() is None:
                    one.kill()
        for rank, (one, (_, err)) in enumerate(zip(started, outputs)):
            if one.returncode != 0:
                raise BenchError(f"rank {rank} of {self.impl} ended with status {one.returncode}; it wrote:\n{err}")
        return [json.loads(line) for line in outputs[0][0].splitlines() if line.startswith("{")]

    def run(self, sizes, seconds):
        work = ["--sizes", ",".join(map(str, sizes)), "--ops", ",".join(self.ops), "--seconds-per-point", str(seconds)]
        return [line | {"impl": self.impl, "hosts": self.hosts.count} for line in self.lines(self.command + work)]


class MpiProgram(HostsProgram):
    """mpirun on the first host. It starts its daemons on the others by a stand-in for ssh."""

    def lines(self, words):
        local = self.ranks // self.hosts.count
        places = ",".join(f"{self.hosts.address(host)}:{local}" for host in range(self.hosts.count))
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "on_host"
            cases = "".join(f"{self.hosts.address(i)}) on={name} ;; " for i, name in enumerate(self.hosts.made))
            agent.write_text(f'#!/bin/sh\ncase $1 in {cases} esac\nshift\n'
                             # Shared memory of its own: OpenMPI's files there have names that two hosts of one name share.
                             'exec ip netns exec "$on" unshare -m sh -c "mount -t tmpfs none /dev/shm && $*"\n')
            agent.chmod(0o755)
            network = f"{NETWORK}.0/24"
            mpirun = programs.mpirun(self.ranks) + [
                "-H", places, "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", network,
                "--mca", "btl_tcp_if_include", network, "--mca", "btl", "tcp,vader,self", "--mca", "pml", "ob1"]
            return programs.run(self.impl, ["ip", "netns", "exec", self.hosts.made[0], *mpirun, *words], DEADLINE)


def plan(options, hosts, ranks):
    ours = programs.our_program(options.bin, "comm_bench")
    found = [HostsProgram(OURS, [ours, "--backend", "gloo"], hosts, ranks)]
    if options.no_peers:
        return found
    torch = [programs.peers_python(options.python), programs.PEERS / "torch_comm.py", "--launched", "--ranks", ranks]
    found.append(HostsProgram(GLOO, torch, hosts, ranks))
    if shutil.which("mpirun") and shutil.which("mpicxx"):
        found.append(MpiProgram(OPENMPI, [programs.mpi_program("mpi_comm")], hosts, ranks))
    return found


def table(points, ranks_list, sizes):
    others = [GLOO, OPENMPI]
    rows = [["op", "size", "ranks", OURS, *others, *(f"vs {other}" for other in others)]]
    for op in comm.OPS:
        for size in sizes:
            for ranks in ranks_list:
                times = [comm.cell(points.us(impl, op, ranks, size), size) for impl in [OURS, *others]]
                ratios = [comm.ratio_cell(points.speedup(OURS, other, op, ranks, size)) for other in others]
                rows.append([op, comm.size_text(size), str(ranks), *times, *ratios])
    return output.aligned(rows)


def run(options):
    ranks_list = options.ranks or [options.hosts, 2 * options.hosts]
    if any(ranks % options.hosts for ranks in ranks_list):
        raise BenchError(f"{options.hosts} hosts: give --ranks multiples of that")
    sizes = comm.chosen_sizes(options, ranks_list)
    with Hosts(options.hosts) as hosts, output.json_lines(options.out, f"comm-hosts{options.hosts}") as emit:
        points = comm.measure({ranks: plan(options, hosts, ranks) for ranks in ranks_list}, sizes, options.quick, emit)
        print("\n" + table(points, ranks_list, sizes) + "\n")
        large = [size for size in sizes if size >= comm.LARGE]
        ratios = {f"{op}_vs_{other}": rounded(comm.worst(points, OURS, other, [op], ranks_list, large))
                  for other in (GLOO, OPENMPI) for op in comm.OPS}
        emit({"bench": "comm", "hosts": options.hosts} | ratios)
