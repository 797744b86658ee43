"""strangers_test.py FSDP WORKER: strangers on the ports of a run do not disturb it.

Each run goes on until it was disturbed, is then stopped by `fsdp ctl`, and is compared with an undisturbed one, loss by
loss.
"""

import subprocess
from pathlib import Path

from command import FSDP, OK, main
from strangers import connect, disturb, listening, listens
from training import FOREVER, RENDEZVOUS, TrainTest, environment, free_port, losses, wait_until

STEPS = ("--set", "training.reproducible=true", "--set", "checkpoint.every_steps=0",
         "--set", "logging.tensorboard=false")
COMPARED = 60  # steps


class StrangersTest(TrainTest):
    def setUp(self):
        super().setUp()
        self.silent = []
        self.addCleanup(lambda: [one.close() for one in self.silent])

    def disturb(self, address, **how):
        self.silent += disturb(address, **how)

    def steps(self):
        return max(losses(self.run_folder), default=0)

    def goes_on(self, *processes):
        """The run does more steps, and ends in order when it is asked to."""
        done = self.steps()
        wait_until(lambda: self.steps() > max(done + 3, COMPARED) or processes[0].poll() is not None, "more steps")
        self.fsdp("ctl", self.run_folder, "stop")
        self.assertEqual([process.wait(60) for process in processes], [OK] * len(processes), self.all_output())
        disturbed, self.run_folder = losses(self.run_folder), self.folder / "undisturbed"
        self.train(*STEPS, "--set", f"training.max_steps={COMPARED}")
        self.assertEqual({step: disturbed[step] for step in range(1, COMPARED + 1)}, losses(self.run_folder))

    def all_output(self):
        return "".join(path.read_text() for path in self.folder.iterdir() if path.is_file())

    def rank(self, number, port, size=2, **own):
        """A rank that a foreign launcher would start."""
        words = self.words(*FOREVER, *STEPS)
        log = open(self.folder / f"rank-{number}-of-{size}", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                                   env=environment(RANK=str(number), WORLD_SIZE=str(size), LOCAL_RANK=str(number),
                                                   LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                                   **own))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


class OneMachine(StrangersTest):
    def test_a_run_listens_on_loopback_only_and_strangers_do_not_disturb_it(self):
        process = self.start_and_wait(*FOREVER, *STEPS)
        ranks = self.ranks()
        ports = {rank: listening(pid) for rank, pid in ranks.items()}
        self.assertEqual(len(ports[0]), 2, "the store and the control socket: " + str(ports))
        self.assertEqual(ports[1], set())
        self.assertEqual({address for address, _ in ports[0]}, {"127.0.0.1"})
        self.assertEqual(listening(process.pid), set())
        for address in ports[0]:
            self.disturb(address)
        self.goes_on(process)

    def test_strangers_while_ranks_meet(self):
        port = free_port()
        first = self.rank(0, port)
        wait_until(lambda: listens(("127.0.0.1", int(port))), "the store")
        self.disturb(("127.0.0.1", int(port)))
        second = self.rank(1, port)
        self.goes_on(first, second)


class OtherJobs(StrangersTest):
    def test_a_rank_of_another_job_while_ranks_meet(self):
        port = free_port()
        first = self.rank(0, port, TORCHELASTIC_RUN_ID="one")
        wait_until(lambda: listens(("127.0.0.1", int(port))), "the store")
        other = self.rank(1, port, 4, TORCHELASTIC_RUN_ID="other", FSDP_SET_distributed__timeout="5")
        self.assertEqual(other.wait(60), RENDEZVOUS, self.all_output())
        second = self.rank(1, port, TORCHELASTIC_RUN_ID="one")
        self.goes_on(first, second)

    def test_a_rank_of_another_job_while_a_run_trains(self):
        port = free_port()
        own = {"TORCHELASTIC_RUN_ID": "none"}
        ranks = [self.rank(number, port, **own) for number in range(2)]
        wait_until(lambda: self.steps() > 2, "steps")
        for number, size in ((1, 4), (2, 4), (1, 2)):  # of another size, and one that has all values of ours
            words = ("--run", self.folder / f"other-{number}-{size}", "--set", "training.max_steps=4")
            other = subprocess.run([FSDP, "train", "--config", self.config, *map(str, words)], capture_output=True, text=True,
                                   timeout=60, env=environment(
                                       RANK=str(number), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                       FSDP_SET_distributed__timeout="5", FSDP_SET_training__global_batch_size="8", **own))
            self.assertEqual(other.returncode, RENDEZVOUS, other.stderr)
        self.goes_on(*ranks)

    def test_each_run_of_the_launcher_has_an_id_of_its_own(self):
        says = ("sh", "-c", "echo $TORCHELASTIC_RUN_ID")
        ids = [subprocess.run([FSDP, "run", *says], capture_output=True, text=True, env=environment()).stdout for _ in range(2)]
        self.assertNotEqual(*ids)
        self.assertRegex(ids[0], "^[0-9a-f]{32}\n$")


class SeveralNodes(StrangersTest):
    def node(self, number, port, *words):
        log = open(self.folder / f"node-{number}", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [FSDP, "run", "--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", port,
             "--nproc-per-node", "1", "--max-restarts", "1", *map(str, words)], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, cwd=self.folder, env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_strangers_at_the_endpoint_where_nodes_meet(self):
        port = free_port()
        words = ("fsdp", *self.words(*FOREVER, *STEPS)[1:])
        first = self.node(0, port, *words)
        endpoint = ("127.0.0.1", int(port))
        wait_until(lambda: listens(endpoint), "the endpoint")
        self.assertEqual({address for address, _ in listening(first.pid)}, {"127.0.0.1"})
        self.disturb(endpoint)
        second = self.node(1, port, *words)
        wait_until(lambda: self.steps() > 2 or first.poll() is not None, "steps")
        self.disturb(endpoint)
        self.goes_on(first, second)

    def test_a_node_of_another_run_is_refused(self):
        port = free_port()
        first = self.node(0, port, "sh", "-c", "sleep 3")
        wait_until(lambda: listens(("127.0.0.1", int(port))), "the endpoint")
        other = subprocess.run(
            [FSDP, "run", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", f"127.0.0.1:{port}", "--max-restarts", "1",
             "--rdzv-id", "other", "true"], capture_output=True, text=True, timeout=30, env=environment())
        self.assertIn("--rdzv-id: found 'other', but the run at this endpoint has another\n", other.stderr)
        second = self.node(1, port, "sh", "-c", "sleep 1")
        self.assertEqual((first.wait(60), second.wait(60)), (OK, OK), self.all_output())

    def test_many_silent_connections_leave_room_for_the_nodes(self):
        port = free_port()
        first = self.node(0, port, "true")
        wait_until(lambda: listens(("127.0.0.1", int(port))), "the endpoint")
        self.silent += [one for one in (connect(("127.0.0.1", int(port))) for _ in range(900)) if one]
        self.assertLess(len(list(Path(f"/proc/{first.pid}/fd").iterdir())), 300)
        second = self.node(1, port, "true")
        self.assertEqual((first.wait(60), second.wait(60)), (OK, OK), self.all_output())


if __name__ == "__main__":
    main()
