"""hosts_test.py FSDP WORKER TRAFFIC [CASE]: CPU ranks on two and four hosts, which are network namespaces.

Everything between the hosts goes over their links. The bytes there are counted by the links' own counters.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "app"))

from namespaces import Hosts, require_namespaces
from training import FSDP, OK, WORKER, TrainTest, environment, free_port, records, wait_until

TRAFFIC = sys.argv.pop(3)
DEADLINE = 90  # seconds of one run
SMALL = {"training.reproducible": "true", "training.batch_size": 1, "training.global_batch_size": 8, "training.max_steps": 50,
         "checkpoint.every_steps": 0}
MULTI_NODE = ("--fsdp-config", "multi_node_fsdp")


class HostsTest(TrainTest):
    def hosts(self, count):
        made = Hosts(count)
        self.addCleanup(made.close)
        return made

    def begin(self, hosts, host, words, **own):
        process = subprocess.Popen(hosts.command(host, words), env=environment(**own), cwd=self.folder, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def nodes(self, hosts, words, **own):
        """Starts `words` once on every host."""
        port = free_port()
        return [self.begin(hosts, host, words, MASTER_ADDR=hosts.address(0), MASTER_PORT=port, NODE_RANK=str(host), **own)
                for host in range(hosts.count)]

    def small(self, settings):
        return [word for key, value in (SMALL | settings).items() for word in ("--set", f"{key}={value}")]

    def train_on(self, hosts, run, *words, ranks=2, settings={}):
        """Starts `fsdp train` once on every host."""
        return self.nodes(hosts, self.words("--run", self.folder / run, *self.small(settings), *words, "--num-nodes",
                                            hosts.count, "--devices", ranks))

    def ends(self, processes, code=OK):
        outputs = [process.communicate(timeout=DEADLINE) for process in processes]
        for process, (out, err) in zip(processes, outputs):
            self.assertEqual(process.returncode, code, "\n".join(out + err for out, err in outputs))
        return [out + err for out, err in outputs]

    def train_here(self, run, *words, ranks=4, settings={}):
        self.train("--run", self.folder / run, *self.small(settings), *words, "--num-nodes", 1, "--devices", ranks)

    def same_weights(self, one, other):
        """All bits are equal, moments included, but for the random generators, of which every rank has one."""
        done = subprocess.run([FSDP, "ckpt", "diff", "--json", self.folder / one, self.folder / other], text=True,
                              capture_output=True, timeout=60)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        found = json.loads(done.stdout)
        differs = [name for value in found.values() if isinstance(value, list) for name in
                   (one["name"] if isinstance(one, dict) else one for one in value) if not name.startswith("rng")]
        self.assertEqual(differs, [])

    def traffic(self, hosts, op, size, rounds, ranks=2, **own):
        """Starts the ranks of the traffic program, one process each. Returns them by rank."""
        port, world = free_port(), hosts.count * ranks
        return [self.begin(hosts, rank // ranks, [TRAFFIC, op, size, rounds], RANK=str(rank), WORLD_SIZE=str(world),
                           LOCAL_RANK=str(rank % ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR=hosts.address(0),
                           MASTER_PORT=port, **own) for rank in range(world)]


class Training(HostsTest):
    def test_bits_are_those_of_one_host(self):
        self.train_here("one")
        for count in (2, 4):
            shown = self.ends(self.train_on(self.hosts(count), f"on{count}"))
            self.assertIn(f"{2 * count} CPU ranks on {count} hosts (gloo)", shown[0])
            self.same_weights("one", f"on{count}")

    def test_without_reproducible_mode_the_loss_is_that_of_one_host_to_rounding(self):
        plain = {"training.reproducible": "false"}
        self.train_here("one", settings=plain)
        self.ends(self.train_on(self.hosts(2), "two", settings=plain))
        losses = [[one["loss"] for one in records(self.folder / run)] for run in ("one", "two")]
        self.assertEqual(len(losses[0]), 50)
        for here, there in zip(*losses):
            self.assertAlmostEqual(here, there, delta=1e-5 * here)

    def test_rows_of_a_hybrid_mesh_are_hosts(self):
        hybrid = {"distributed.fsdp.sharding_strategy": "HYBRID_SHARD"}
        self.train_here("one")
        hosts = self.hosts(2)
        sent = {}
        for run, settings in (("full", {}), ("rows", hybrid)):
            before = hosts.sent(0)
            self.ends(self.train_on(hosts, run, settings=settings))
            sent[run] = hosts.sent(0) - before
            self.same_weights("one", run)
        print(f"\nbytes that host 0 sent: {sent['full']:,} fully sharded, {sent['rows']:,} in rows of a host")
        self.assertLess(sent["rows"], 0.7 * sent["full"], "parameters are gathered inside the host")

    def test_the_command_for_several_nodes(self):
        settings = {"training.reproducible": "false", "training.max_steps": 4}
        self.train_here("one", *MULTI_NODE, settings=settings)
        self.ends(self.train_on(self.hosts(2), "two", *MULTI_NODE, settings=settings))
        self.same_weights("one", "two")


class Wire(HostsTest):
    SIZE = 4 << 20
    ROUNDS = 10

    def sent(self, hosts, op, rounds):
        before = hosts.sent(0)
        self.ends(self.traffic(hosts, op, self.SIZE, rounds))
        return hosts.sent(0) - before

    def test_bytes_are_those_of_the_formula(self):
        print(f"\nbytes that a host sends to others, of a buffer of N = {self.SIZE:,} bytes; 2 ranks on each host")
        for count in (2, 4):
            hosts, world = self.hosts(count), 2 * count
            start = self.sent(hosts, "all_gather", 0)
            once = 2 * (world - 2) / world * self.SIZE
            for op, formula, bytes_expected in (("all_gather", "L(W-L)/W N", once), ("reduce_scatter", "L(W-L)/W N", once),
                                                ("all_reduce", "2L(W-L)/W N", 2 * once)):
                counted = (self.sent(hosts, op, self.ROUNDS) - start) / self.ROUNDS
                ring = (2 if op != "all_gather" else 1) * (world - 1) / world * self.SIZE
                print(f"  {count} hosts  {op:15}{counted:14,.0f} counted  {formula:>12} = {bytes_expected:12,.0f}"
                      f"   gloo's own rings: {ring:12,.0f}")
                self.assertGreater(counted, bytes_expected)
                self.assertLess(counted, 1.05 * bytes_expected, "headers are small")


class Faults(HostsTest):
    FOREVER = 1 << 40

    def pids(self, processes):
        """{rank: pid}, once every rank has made the group."""
        found = {}
        for process in processes:
            line = process.stdout.readline()
            match = re.match(r"rank (\d+) pid (\d+) gloo", line)
            self.assertTrue(match, line + (process.stderr.read() if not line else ""))
            found[int(match[1])] = int(match[2])
        return found

    def survivors(self, processes, victim, within):
        """What the ranks but `victim` say, once they have ended, which they must do in time."""
        until = time.monotonic() + within
        said = {}
        for rank, process in enumerate(processes):
            if rank != victim:
                said[rank] = process.communicate(timeout=max(0.1, until - time.monotonic()))[1]
                self.assertNotEqual(process.returncode, OK)
        return said

    def test_a_killed_rank_ends_all_with_the_right_cause(self):
        for victim in (3, 0):
            processes = self.traffic(self.hosts(2), "all_reduce", 1 << 16, self.FOREVER)
            pids = self.pids(processes)
            os.kill(pids[victim], signal.SIGKILL)
            start = time.monotonic()
            for rank, words in self.survivors(processes, victim, 20).items():
                self.assertRegex(words, rf"rank {victim} \(host host{victim // 2}, pid {pids[victim]}\): .*(died|gone)", f"rank {rank}")
            print(f"\nrank {victim} killed: the others had ended after {time.monotonic() - start:.2f} s")

    def test_a_link_that_comes_back_changes_no_bit(self):
        self.train_here("one", settings={"training.max_steps": 400})
        hosts = self.hosts(2)
        processes = self.train_on(hosts, "two", settings={"training.max_steps": 400})
        wait_until(lambda: len(records(self.folder / "two")) >= 20, "steps")
        hosts.cut(1)
        time.sleep(1)
        at_cut = len(records(self.folder / "two"))
        time.sleep(9)
        self.assertEqual(len(records(self.folder / "two")), at_cut, "no step without the link")
        self.assertLess(at_cut, 400, "the link was cut during the run")
        hosts.mend(1)
        start = time.monotonic()
        self.ends(processes)
        print(f"\nlink down for 10 s in step {at_cut}: the run ended {time.monotonic() - start:.1f} s after it was up")
        self.same_weights("one", "two")

    def test_a_link_that_stays_down_ends_in_a_clear_error(self):
        hosts = self.hosts(2)
        processes = self.traffic(hosts, "all_reduce", 1 << 16, self.FOREVER, FSDP_TIMEOUT="4")
        self.pids(processes)
        hosts.cut(1)
        start = time.monotonic()
        for rank, words in self.survivors(processes, None, 20).items():
            self.assertRegex(words, r"(host1|host0), pid \d+\): it has not come to this all_reduce within \d+ ms", f"rank {rank}")
        print(f"\nlink down, timeout 4 s: all ranks had ended after {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    import unittest

    require_namespaces()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
