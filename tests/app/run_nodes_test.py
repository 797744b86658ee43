"""run_nodes_test.py FSDP WORKER: `fsdp run` on several nodes. A node is one launcher here; all are on this machine."""

import re
import resource
import signal
import socket
import subprocess
import threading
import time

from command import FSDP, OK, USAGE, CommandTest, main
from training import PEER_LOST, RENDEZVOUS, TrainTest, environment, free_port, losses, processes_of, wait_until

# Writes how it was started into a file of its round; then says what the test's own lines say.
STARTED = "echo $WORLD_SIZE $NODE_RANK $MASTER_PORT > round-$TORCHELASTIC_RESTART_COUNT-rank-$RANK; "
WORKS = "trap 'exit 75' TERM; for i in $(seq 600); do sleep 0.05; done; "


class NodesTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.mark = f"{self.folder}/mark"

    def node(self, *words, script, **own):
        """Starts the launcher of a node."""
        command = [FSDP, "run", "--rdzv-endpoint", f"127.0.0.1:{self.port}", *words, "sh", "-c", STARTED + script, self.mark]
        few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # noqa: E731: descriptors must not leak
        process = subprocess.Popen(command, env=environment(**own), cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, preexec_fn=few)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def fixed(self, script, nodes=2, *words):
        return [self.node("--nnodes", str(nodes), "--node-rank", str(rank), *words, script=script) for rank in range(nodes)]

    def ended(self, process, code):
        """What the launcher wrote to stderr."""
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, out + err)
        return err

    def round(self, number, ranks):
        """Waits for a round; {rank: [world size, node rank, port]}."""
        files = [self.folder / f"round-{number}-rank-{rank}" for rank in range(ranks)]
        wait_until(lambda: all(one.exists() and one.read_text().endswith("\n") for one in files), f"round {number}", 30)
        found = {rank: one.read_text().split() for rank, one in enumerate(files)}
        self.assertEqual({start[0] for start in found.values()}, {str(ranks)})
        self.assertEqual(len({start[2] for start in found.values()}), 1, "one port")
        return found

    def nothing_is_left(self):
        wait_until(lambda: not processes_of(self.mark), "the end of all ranks", 20)


class FixedSizes(NodesTest):
    FAILS_ONCE = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 3 ] && exit 7; sleep 60"

    def test_a_failure_on_one_node_starts_the_ranks_of_all_again(self):
        nodes = self.fixed(self.FAILS_ONCE, 2, "--nproc-per-node", "2", "--max-restarts", "2")
        errors = [self.ended(node, OK) for node in nodes]
        for err in errors:
            self.assertRegex(err, r"rank 3 of 4 on \S+ ended with exit code 7; starting all ranks again \(restart 1 of 2\)")
        for number in range(2):
            self.assertEqual([start[1] for start in self.round(number, 4).values()], ["0", "0", "1", "1"])

    def test_with_the_budget_spent_every_launcher_names_the_cause_and_has_its_code(self):
        nodes = self.fixed("sleep 0.$NODE_RANK; [ $RANK = 1 ] && exit 9; sleep 60", 3, "--max-restarts", "1")
        for node in nodes:
            self.assertRegex(self.ended(node, 9), r"fsdp: rank 1 of 3 on \S+ ended with exit code 9\n")
        self.nothing_is_left()

    def test_a_killed_launcher_is_waited_for(self):
        nodes = self.fixed("[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; " + WORKS, 2, "--max-restarts", "1")
        self.round(0, 2)
        nodes[1].kill()
        while "was lost" not in (line := nodes[0].stderr.readline()):
            self.assertTrue(line, "it ended")
        self.assertRegex(line, r"node 1 \(\S+\) was lost.*Waiting up to 600 s for 1 node")
        self.assertIsNone(nodes[0].poll(), "it waits for the node")
        again = self.node("--nnodes", "2", "--node-rank", "1", "--max-restarts", "1", script="exit 0")
        self.assertEqual([process.wait(30) for process in (nodes[0], again)], [OK, OK])
        self.round(1, 2)

    def test_the_loss_of_node_0s_launcher_ends_the_others(self):
        nodes = self.fixed(WORKS, 2, "--max-restarts", "5")
        self.round(0, 2)
        nodes[0].kill()
        err = self.ended(nodes[1], PEER_LOST)
        self.assertIn(f"the launcher at 127.0.0.1:{self.port}, which keeps the nodes together, was lost", err)
        self.nothing_is_left()

    def test_a_signal_to_any_node_lets_all_ranks_save_and_leave(self):
        for interrupted, number, code in ((0, signal.SIGINT, OK), (1, signal.SIGINT, OK), (0, signal.SIGTERM, 75), (1, signal.SIGTERM, 75)):
            nodes = self.fixed(WORKS, 2, "--max-restarts", "5")
            self.round(0, 2)
            nodes[interrupted].send_signal(number)
            told = [self.ended(node, code) for node in nodes]
            self.assertIn(f"{number.name}: asked rank {interrupted} to finish the step", told[interrupted])
            self.assertRegex(told[1 - interrupted], rf"{number.name} came to \S+: asked rank {1 - interrupted} to finish the step, save and leave\n")
            self.assertEqual(told[interrupted].count("asked"), 1)
            for left in self.folder.glob("round-*"):
                left.unlink()
            self.port = free_port()

    def test_a_second_signal_to_one_node_ends_the_others(self):
        nodes = self.fixed("trap '' TERM; for i in $(seq 6000); do sleep 0.05; done", 2, "--max-restarts", "5")
        self.round(0, 2)
        nodes[1].send_signal(signal.SIGTERM)
        time.sleep(0.5)  # longer than a signal counts as a repetition
        nodes[1].send_signal(signal.SIGTERM)
        self.assertEqual([self.ended(node, 143).count("SIGTERM to the launcher") for node in nodes], [1, 1])
        self.nothing_is_left()

    def test_however_much_the_ranks_print_the_cause_is_told(self):
        shouts = "[ $NODE_RANK = 0 ] && exec sleep 60; for i in $(seq 12); do head -c 60000 /dev/zero | tr '\\0' x; echo; done; exit 7"
        nodes = self.fixed(shouts, 2, "--max-restarts", "1", "--nproc-per-node", "2", "--tee", "0")
        for node in nodes:
            err = self.ended(node, 7)
            self.assertRegex(err, r"rank [23] of 4 on \S+ ended with exit code 7")
            self.assertIn("restart 1 of 1", err)

    def test_a_node_that_cannot_start_its_ranks_is_the_cause(self):
        good = self.node("--nnodes", "2", "--node-rank", "0", "--max-restarts", "3", script="sleep 60")
        bad = subprocess.Popen([FSDP, "run", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--nnodes", "2", "--node-rank", "1",
                                "--max-restarts", "3", "./no-such-program"], env=environment(), cwd=self.folder, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(bad.kill)
        for node in (good, bad):
            err = self.ended(node, USAGE)
            self.assertIn("no-such-program", err)
            self.assertIn("Not started again", err)
            self.assertNotIn("starting all ranks again", err)
        self.nothing_is_left()

    def test_a_name_may_become_known_later(self):
        begin = time.monotonic()
        _, err = self.run_alone("--rdzv-endpoint", "no-such-host.invalid:1", "--rdzv-conf", "join_timeout=4")
        self.assertGreater(time.monotonic() - begin, 3.5)
        self.assertIn("waiting for node 0 at no-such-host.invalid:1, a name that is not known here yet", err)
        self.assertIn("cannot be resolved", err)

    def test_a_node_that_may_be_the_first_waits_for_a_name_too(self):
        for words in (("--nnodes", "2", "--node-rank", "0"), ("--nnodes", "1:2")):
            begin = time.monotonic()
            done = subprocess.run([FSDP, "run", *words, "--max-restarts", "1", "--rdzv-endpoint", "no-such-host.invalid:1",
                                   "--rdzv-conf", "join_timeout=3", "true"], env=environment(), cwd=self.folder,
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn("cannot be resolved", done.stderr)
            self.assertGreater(time.monotonic() - begin, 2.5, words)

    def test_a_name_that_is_loopback_on_its_own_machine_only(self):
        """As on Debian: node 0 knows its name as 127.0.1.1, the others know another address of it."""
        def with_name(address):
            file = self.folder / f"hosts-{address}"
            file.write_text(f"{address} fsdp-node0\n")
            return ["unshare", "-m", "sh", "-c", f'mount --bind {file} /etc/hosts && exec "$@"', "sh"]
        if subprocess.run([*with_name("127.0.1.1"), "true"], capture_output=True).returncode != 0:
            self.skipTest("needs a user that may mount")
        nodes = [subprocess.Popen([*with_name(address), FSDP, "run", "--nnodes", "2", "--node-rank", str(node),
                                   "--max-restarts", "1", "--rdzv-endpoint", f"fsdp-node0:{self.port}", "true"],
                                  env=environment(), cwd=self.folder, stderr=subprocess.PIPE, text=True)
                 for node, address in enumerate(("127.0.1.1", "127.0.0.2"))]
        for node in nodes:
            self.addCleanup(node.communicate)
            self.addCleanup(node.kill)
        for node in nodes:
            _, err = node.communicate(timeout=40)
            self.assertEqual(node.returncode, OK, err)

    def run_alone(self, *words):
        done = subprocess.run([FSDP, "run", "--nnodes", "2", "--node-rank", "1", "--max-restarts", "1", *words, "true"],
                              env=environment(), cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, USAGE, done.stderr)
        return done.stdout, done.stderr

    def test_nodes_that_do_not_fit_are_refused(self):
        nodes = self.fixed(WORKS, 2, "--max-restarts", "1")
        self.round(0, 2)
        join = ("--nnodes", "2", "--max-restarts", "1")
        for words, says in ((("--node-rank", "1"), "is this node already"),
                            (("--node-rank", "1", "--nproc-per-node", "2"), "--nproc-per-node: found 2 on"),
                            (("--node-rank", "1", "--rdzv-id", "other"), "--rdzv-id: found 'other'")):
            self.assertIn(says, self.ended(self.node(*join, *words, script="exit 0"), USAGE))
        self.assertEqual([node.poll() for node in nodes], [None, None], "the run goes on")

    def test_nodes_that_do_not_come_are_counted(self):
        node = self.node("--nnodes", "3", "--node-rank", "0", "--max-restarts", "1", "--rdzv-conf", "join_timeout=1", script="")
        self.assertIn("of 3 nodes, 1 came within 1 s", self.ended(node, RENDEZVOUS))

    def test_a_port_in_use_is_named(self):
        with socket.create_server(("127.0.0.1", int(self.port))):
            node = self.node("--nnodes", "2", "--node-rank", "0", "--max-restarts", "1", script="")
            self.assertRegex(self.ended(node, USAGE), rf"cannot listen at 127.0.0.1:{self.port}.*Address already in use")


class Strangers(NodesTest):
    SPEECH = (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\xff" * 5000, b"{" * 3_000_000, b"[1,2]\n7\nnull\n\"x\"\n",
              b'{"is": "ended", "outcome": {}}\n', b'{"is": "hello", "run": 7, "ranks": "x", "place": -9}\n',
              b'{"is": "hello", "run": "none"}\n' * 50)

    def disturb(self):
        for words in self.SPEECH:
            with socket.create_connection(("127.0.0.1", int(self.port)), 5) as stranger:
                try:
                    stranger.sendall(words)
                except OSError:
                    pass  # it has been thrown out

    def flood(self):
        """Sends what is no greeting for as long as somebody reads it."""
        with socket.create_connection(("127.0.0.1", int(self.port)), 5) as stranger:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                try:
                    stranger.sendall(b"{}\n" * 10000)
                except OSError:
                    self.flooded = False
                    return
        self.flooded = True

    def crowd(self):
        """As many nodes of another run as would use up the descriptors, which stay connected."""
        for _ in range(300):
            stranger = socket.create_connection(("127.0.0.1", int(self.port)), 5)
            self.addCleanup(stranger.close)
            stranger.sendall(b'{"is": "hello", "run": "another", "ranks": 1, "place": 1}\n')

    def test_they_disturb_neither_a_run_that_gathers_nor_one_that_runs(self):
        words = ("--nnodes", "2", "--max-restarts", "1", "--rdzv-id", "none-of-theirs")
        script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; while [ ! -e go ]; do sleep 0.05; done; exit 1"
        nodes = [self.node(*words, "--node-rank", "0", script=script)]
        wait_until(lambda: listens(self.port), "the endpoint")
        self.disturb()
        flood = threading.Thread(target=self.flood)
        flood.start()
        self.addCleanup(flood.join)
        self.crowd()
        nodes.append(self.node(*words, "--node-rank", "1", script=script))
        self.round(0, 2)
        self.disturb()
        time.sleep(0.3)
        self.assertFalse((self.folder / "round-1-rank-0").exists())
        (self.folder / "go").touch()
        for node in nodes:
            self.assertEqual(self.ended(node, OK).count("starting all ranks again"), 1)
        flood.join()
        self.assertFalse(self.flooded, "who is no node is not listened to for long")


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", int(port)), 1).close()
        return True
    except OSError:
        return False


class ElasticSizes(NodesTest):
    CONF = ("--nnodes", "1:3", "--rdzv-conf", "last_call_timeout=1")

    def test_a_node_that_comes_makes_the_next_round_larger(self):
        script = "[ $WORLD_SIZE = 2 ] && exit 0; " + WORKS
        first = self.node(*self.CONF, script=script)
        self.round(0, 1)
        second = self.node(*self.CONF, script=script)
        err = self.ended(first, OK)
        self.assertEqual(second.wait(30), OK)
        self.assertRegex(err, r"\S+ has come; starting all ranks again, on more nodes")
        self.round(1, 2)

    def test_a_lost_node_makes_it_smaller(self):
        script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; " + WORKS
        words = ("--nnodes", "1:3", "--rdzv-conf", "last_call_timeout=5", "--max-restarts", "1")
        nodes = [self.node(*words, script=script)]
        wait_until(lambda: listens(self.port), "the endpoint")  # the first keeps the nodes together
        nodes += [self.node(*words, script=script) for _ in range(2)]
        self.round(0, 3)
        nodes[1].kill()
        for node in (nodes[0], nodes[2]):
            self.assertRegex(self.ended(node, OK), r"was lost.*starting all ranks again \(restart 1 of 1\)")
        self.round(1, 2)

    def test_a_node_whose_ranks_cannot_save_leaves_and_the_others_go_on(self):
        script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 0 ] && { trap '' TERM; while [ ! -e gone ]; do sleep 0.05; done; exit 5; }; sleep 60"
        words = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=5", "--max-restarts", "1")
        first = self.node(*words, script=script)
        wait_until(lambda: listens(self.port), "the endpoint")
        second = self.node(*words, script=script)
        self.round(0, 2)
        second.send_signal(signal.SIGTERM)
        self.ended(second, 143)
        (self.folder / "gone").touch()  # its peer is gone, says the other rank then
        self.assertIn("starting all ranks again (restart 1 of 1)", self.ended(first, OK))
        self.round(1, 1)

    def test_sizes_grow_without_a_budget_but_a_failure_needs_one(self):
        script = "[ $WORLD_SIZE = 2 ] && exit 4; " + WORKS
        first = self.node(*self.CONF, script=script)
        self.round(0, 1)
        second = self.node(*self.CONF, script=script)
        for node in (first, second):
            self.assertRegex(self.ended(node, 4), r"of 2 on \S+ ended with exit code 4")


class ElasticTraining(TrainTest):
    """`fsdp train` under an elastic `fsdp run`: the weights are those of a run that nothing disturbed."""
    STEPS = 2000
    EXACT = ("--set", "training.reproducible=true", "--set", f"training.max_steps={STEPS}",
             "--set", "training.global_batch_size=8", "--set", "checkpoint.every_steps=20")

    def launcher(self, port, *words):
        command = [FSDP, "run", "--rdzv-endpoint", f"127.0.0.1:{port}", "--nnodes", "1:2", "--nproc-per-node", "2",
                   "--max-restarts", "3", "--rdzv-conf", "last_call_timeout=1", *words, "--", "fsdp", "train", "--config",
                   str(self.config), "--run", str(self.run_folder), *self.EXACT]
        process = subprocess.Popen(command, env=environment(), cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_four_ranks_then_two_then_four_give_the_bits_of_an_undisturbed_run(self):
        self.train("--run", self.folder / "plain", *self.EXACT, "--devices", "2")
        wanted = losses(self.folder / "plain")
        self.assertEqual(len(wanted), self.STEPS)
        port = free_port()
        first = self.launcher(port)
        wait_until(lambda: listens(port), "the endpoint")  # the first keeps the nodes together
        second = self.launcher(port)
        wait_until(lambda: len(losses(self.run_folder)) > 8, "steps of four ranks")
        second.kill()
        before = len(losses(self.run_folder))
        wait_until(lambda: len(losses(self.run_folder)) > before + 8, "steps of two ranks")
        third = self.launcher(port)
        out, _ = first.communicate(timeout=90)
        self.assertEqual(first.returncode, OK, out)
        self.assertEqual(third.wait(30), OK)
        self.assertEqual(losses(self.run_folder), wanted)
        sizes = re.findall(r"ranks +(\d) CPU ranks", out)
        self.assertEqual(sizes[:2], ["4", "2"], out)


if __name__ == "__main__":
    main()
