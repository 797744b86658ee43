"""strangers_test.py FSDP WORKER: strangers on the ports of a run do not disturb it.

Each run is compared with an undisturbed one, loss by loss.
"""

import subprocess
from pathlib import Path

from command import FSDP, OK, main
from strangers import connect, disturb, listening
from training import RENDEZVOUS, TrainTest, environment, free_port, losses, wait_until

STEPS = ("--set", "training.max_steps=400", "--set", "training.reproducible=true", "--set", "checkpoint.every_steps=0",
         "--set", "logging.tensorboard=false")


class StrangersTest(TrainTest):
    def setUp(self):
        super().setUp()
        self.silent = []
        self.addCleanup(lambda: [one.close() for one in self.silent])

    def disturb(self, address, **how):
        self.silent += disturb(address, **how)

    def expected(self):
        before, self.run_folder = self.run_folder, self.folder / "undisturbed"
        self.train(*STEPS)
        self.run_folder = before
        return losses(self.folder / "undisturbed")

    def rank(self, number, port, size=2, **own):
        """A rank that a foreign launcher would start."""
        words = self.words(*STEPS)
        log = open(self.folder / f"rank-{number}-of-{size}", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                                   env=environment(RANK=str(number), WORLD_SIZE=str(size), LOCAL_RANK=str(number),
                                                   LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                                   **own))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def said(self, number, size=2):
        return (self.folder / f"rank-{number}-of-{size}").read_text()


class OneMachine(StrangersTest):
    def test_a_run_listens_on_loopback_only_and_strangers_do_not_disturb_it(self):
        expected = self.expected()
        process = self.start_and_wait(*STEPS)
        ranks = self.ranks()
        ports = {rank: listening(pid) for rank, pid in ranks.items()}
        self.assertEqual(len(ports[0]), 2, "the store and the control socket: " + str(ports))
        self.assertEqual(ports[1], set())
        self.assertEqual({address for address, _ in ports[0]}, {"127.0.0.1"})
        self.assertEqual(listening(process.pid), set())
        for address in ports[0]:
            self.disturb(address)
        self.assertIsNone(process.poll(), "it ended too soon to be disturbed: " + self.output())
        self.assertEqual(process.wait(100), OK, self.output())
        self.assertEqual(losses(self.run_folder), expected)

    def test_strangers_while_ranks_meet(self):
        expected, port = self.expected(), free_port()
        first = self.rank(0, port)
        wait_until(lambda: connect(("127.0.0.1", int(port))) is not None, "the store")
        self.disturb(("127.0.0.1", int(port)))
        second = self.rank(1, port)
        self.assertEqual((first.wait(100), second.wait(100)), (OK, OK), self.said(0) + self.said(1))
        self.assertEqual(losses(self.run_folder), expected)


class OtherJobs(StrangersTest):
    def test_a_rank_of_another_job_while_ranks_meet(self):
        expected, port = self.expected(), free_port()
        first = self.rank(0, port, TORCHELASTIC_RUN_ID="one")
        wait_until(lambda: connect(("127.0.0.1", int(port))) is not None, "the store")
        other = self.rank(1, port, 3, TORCHELASTIC_RUN_ID="other", FSDP_SET_distributed__timeout="5")
        self.assertEqual(other.wait(60), RENDEZVOUS, self.said(1, 3))
        second = self.rank(1, port, TORCHELASTIC_RUN_ID="one")
        self.assertEqual((first.wait(100), second.wait(100)), (OK, OK), self.said(0) + self.said(1))
        self.assertEqual(losses(self.run_folder), expected)

    def test_a_rank_of_another_job_while_a_run_trains(self):
        expected, port = self.expected(), free_port()
        own = {"TORCHELASTIC_RUN_ID": "none"}
        ranks = [self.rank(number, port, **own) for number in range(2)]
        wait_until(lambda: len(losses(self.run_folder)) > 2, "steps")
        for number, size in ((1, 4), (2, 4), (1, 2)):  # of another size, and one that has all values of ours
            words = ("--run", self.folder / f"other-{number}-{size}", "--set", "training.max_steps=4")
            other = subprocess.run([FSDP, "train", "--config", self.config, *map(str, words)], capture_output=True, text=True,
                                   timeout=60, env=environment(
                                       RANK=str(number), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                       FSDP_SET_distributed__timeout="5", FSDP_SET_training__global_batch_size="8", **own))
            self.assertEqual(other.returncode, RENDEZVOUS, other.stderr)
        self.assertEqual([rank.wait(100) for rank in ranks], [OK, OK], self.said(0) + self.said(1))
        self.assertEqual(losses(self.run_folder), expected)

    def test_each_run_of_the_launcher_has_an_id_of_its_own(self):
        says = ("sh", "-c", "echo $TORCHELASTIC_RUN_ID")
        ids = [subprocess.run([FSDP, "run", *says], capture_output=True, text=True, env=environment()).stdout for _ in range(2)]
        self.assertNotEqual(*ids)
        self.assertGreater(len(ids[0].split("] ")[1]), 16)


class SeveralNodes(StrangersTest):
    def node(self, number, port, *words):
        log = open(self.folder / f"node-{number}", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [FSDP, "run", "--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", port,
             "--nproc-per-node", "1", "--max-restarts", "1", *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def node_said(self):
        return "".join((self.folder / f"node-{number}").read_text() for number in range(2))

    def test_strangers_at_the_endpoint_where_nodes_meet(self):
        expected, port = self.expected(), free_port()
        words = ("fsdp", *self.words(*STEPS)[1:])
        first = self.node(0, port, *words)
        endpoint = ("127.0.0.1", int(port))
        wait_until(lambda: connect(endpoint) is not None, "the endpoint")
        self.assertEqual({address for address, _ in listening(first.pid)}, {"127.0.0.1"})
        self.disturb(endpoint)
        second = self.node(1, port, *words)
        wait_until(lambda: len(losses(self.run_folder)) > 2 or first.poll() is not None, "steps")
        self.disturb(endpoint)
        self.assertIsNone(first.poll(), "it ended too soon to be disturbed: " + self.node_said())
        self.assertEqual((first.wait(100), second.wait(100)), (OK, OK), self.node_said())
        self.assertEqual(losses(self.run_folder), expected)

    def test_a_node_of_another_run_is_refused(self):
        port = free_port()
        first = self.node(0, port, "sh", "-c", "sleep 3")
        wait_until(lambda: connect(("127.0.0.1", int(port))) is not None, "the endpoint")
        other = subprocess.run([FSDP, "run", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port",
                                port, "--max-restarts", "1", "--rdzv-id", "other", "true"], capture_output=True, text=True, timeout=30,
                               env=environment())
        self.assertIn("--rdzv-id: found 'other'", other.stderr)
        second = self.node(1, port, "sh", "-c", "sleep 1")
        self.assertEqual((first.wait(60), second.wait(60)), (OK, OK), self.node_said())

    def test_many_silent_connections_leave_room_for_the_nodes(self):
        port = free_port()
        first = self.node(0, port, "true")
        wait_until(lambda: connect(("127.0.0.1", int(port))) is not None, "the endpoint")
        self.silent += [one for one in (connect(("127.0.0.1", int(port))) for _ in range(900)) if one]
        self.assertLess(len(list(Path(f"/proc/{first.pid}/fd").iterdir())), 300)
        second = self.node(1, port, "true")
        self.assertEqual((first.wait(60), second.wait(60)), (OK, OK), self.node_said())


if __name__ == "__main__":
    main()
