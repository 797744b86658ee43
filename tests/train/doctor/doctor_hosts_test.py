"""doctor_hosts_test.py FSDP WORKER: `fsdp doctor` on several hosts, which are network namespaces, one with a slow link."""

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "app"), str(TESTS / "hosts")]

from command import FSDP, OK, CommandTest, main
from namespaces import Hosts, require_namespaces
from training import environment, free_port

MBIT = 1e6 / 8


def throttle(hosts, host, megabits):
    """Limits what the host sends."""
    words = f"tc qdisc add dev wire root tbf rate {megabits}mbit burst 256k latency 50ms".split()
    subprocess.run(["ip", "netns", "exec", hosts.made[host], *words], check=True)


class DoctorOnHosts(CommandTest):
    def doctor(self, hosts, *words):
        """The report of rank 0, as JSON."""
        port = free_port()
        nodes = [subprocess.Popen(
            hosts.command(host, [FSDP, "run", "--nnodes", hosts.count, "--node-rank", host, "--master-addr", hosts.address(0),
                                 "--master-port", port, "--nproc-per-node", "1", "--log-dir", self.folder / f"logs{host}",
                                 "fsdp", "doctor", "--json", "--megabytes", "1", "--timeout", "30", *words]),
            env=environment(), cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for host in range(hosts.count)]
        outputs = [node.communicate(timeout=120) for node in nodes]
        for node, (out, err) in zip(nodes, outputs):
            self.assertEqual(node.returncode, OK, out + err + outputs[0][0])
        return json.loads("\n".join(line.removeprefix("[rank 0] ") for line in outputs[0][0].splitlines()))

    def hosts(self, count):
        made = Hosts(count)
        self.addCleanup(made.close)
        return made

    def finding(self, report, subject):
        return next(one for one in report["run"] if one["subject"] == subject)

    def test_even_links(self):
        report = self.doctor(self.hosts(2))
        self.assertEqual([host["name"] for host in report["hosts"]], ["host0, rank 0", "host1, rank 1"])
        self.assertEqual({(link["from"], link["to"]) for link in report["links"]}, {("host0", "host1"), ("host1", "host0")})
        self.assertEqual(self.finding(report, "links")["level"], "ok")
        self.assertRegex(self.finding(report, "clocks")["text"], "host1 is .* rank 0")
        self.assertIn("right on 2 ranks, by gloo", self.finding(report, "collectives")["text"])

    def test_the_slow_link_of_three_hosts_is_named(self):
        hosts = self.hosts(3)
        throttle(hosts, 2, 200)
        report = self.doctor(hosts)
        found = self.finding(report, "links")
        self.assertEqual(found["level"], "warning", report["links"])
        self.assertRegex(found["text"], "^the slowest is host2 -> host[01]: ")
        self.assertIn("On host2 look for a limit (`tc qdisc show`)", found["advice"])
        for link in report["links"]:
            print(link["from"], "->", link["to"], round(link["bytes_per_second"] / 1e6, 1), "MB/s")
            if link["from"] == "host2":
                self.assertLess(link["bytes_per_second"], 1.5 * 200 * MBIT)
                self.assertGreater(link["bytes_per_second"], 0.5 * 200 * MBIT)
            else:
                self.assertGreater(link["bytes_per_second"], 2 * 200 * MBIT)


if __name__ == "__main__":
    require_namespaces()
    main()
