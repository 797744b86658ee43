"""strangers_hosts_test.py FSDP WORKER: strangers on the ports of a run on two hosts, gloo's among them.

Hosts are network namespaces of this machine.
"""

import subprocess
import sys
from pathlib import Path

APP = Path(__file__).resolve().parent
sys.path.insert(0, str(APP.parent / "hosts"))

from command import FSDP, OK, main
from namespaces import Hosts, require_namespaces
from strangers import listening
from training import FOREVER, WORKER, TrainTest, environment, free_port, losses, processes_of, wait_until

STEPS = ("--set", "training.reproducible=true", "--set", "checkpoint.every_steps=0")
COMPARED = 20
DISTURB = "import sys; sys.path.insert(0, sys.argv[1]); from strangers import disturb; kept = [disturb(one) for one in {0!r}]"


class TwoHosts(TrainTest):
    def test_ports_are_on_the_chosen_interfaces_and_strangers_do_not_disturb_the_run(self):
        hosts, port = Hosts(2), free_port()
        self.addCleanup(hosts.close)
        words = self.words(*FOREVER, *STEPS, "--fsdp-config", "multi_node_fsdp", "--num-nodes", "2", "--devices", "1")
        nodes = []
        for host in range(2):
            log = open(self.folder / f"host{host}", "w")
            self.addCleanup(log.close)
            nodes.append(subprocess.Popen(
                hosts.command(host, words), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment(MASTER_ADDR=hosts.address(0), MASTER_PORT=port, NODE_RANK=str(host))))
            self.addCleanup(nodes[-1].wait)
            self.addCleanup(nodes[-1].kill)
        self.wait_for_steps(3, nodes)
        ports = {pid: listening(pid) for pid, words in processes_of(self.run_folder).items() if words[0] == WORKER}
        every = set().union(*ports.values())
        self.assertEqual({address for address, _ in every}, {"127.0.0.1", hosts.address(0), hosts.address(1)})
        self.assertGreaterEqual(len(every), 4, "the store, the control socket and gloo's on both hosts")
        for host in range(2):
            inside = ["ip", "netns", "exec", hosts.made[host], sys.executable, "-c", DISTURB.format(sorted(every)), APP]
            subprocess.run(inside, check=True, timeout=60)
        self.wait_for_steps(max(max(losses(self.run_folder)) + 3, COMPARED), nodes)
        stopped = subprocess.run(hosts.command(0, [FSDP, "ctl", self.run_folder, "stop"]), capture_output=True, text=True,
                                 timeout=60)
        self.assertEqual(stopped.returncode, OK, stopped.stderr)
        self.assertEqual([node.wait(60) for node in nodes], [OK, OK], self.logs())
        disturbed, self.run_folder = losses(self.run_folder), self.folder / "undisturbed"
        self.train(*STEPS, "--set", f"training.max_steps={COMPARED}")
        self.assertEqual({step: disturbed[step] for step in range(1, COMPARED + 1)}, losses(self.run_folder))

    def wait_for_steps(self, number, nodes):
        ended = lambda: any(node.poll() is not None for node in nodes)
        wait_until(lambda: max(losses(self.run_folder), default=0) >= number or ended(), f"step {number}", 90)
        self.assertFalse(ended(), self.logs())

    def logs(self):
        return "".join((self.folder / f"host{host}").read_text() for host in range(2))


if __name__ == "__main__":
    require_namespaces()
    main()
