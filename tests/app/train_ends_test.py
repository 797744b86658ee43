"""train_ends_test.py FSDP WORKER: how `fsdp train` ends: signals, killed ranks, failures and their exit codes."""

import os
import resource
import signal
import socket

from command import FSDP, main
from training import (CHECKPOINT, FOREVER, NUMERIC, OK, RENDEZVOUS, REQUEUE, STORAGE, USAGE, TrainTest, environment,
                      free_port, losses, records, stop, wait_until)


class Signals(TrainTest):
    def test_once_finishes_the_step_saves_and_leaves(self):
        for number, name, code in ((signal.SIGTERM, "SIGTERM", REQUEUE), (signal.SIGUSR1, "SIGUSR1", REQUEUE),
                                   (signal.SIGINT, "SIGINT", OK)):
            self.run_folder = self.folder / name
            process = self.start_and_wait(*FOREVER, "--set", "checkpoint.every_steps=0")
            self.assertEqual(stop(process, number), code, self.output())
            last = records(self.run_folder, "end")[0]
            self.says(self.output(), f"fsdp: {name}: asked ranks 0, 1 to finish the step, save and leave",
                      f"SIGTERM after step {last['step']} in ", f"; saved {self.run_folder}/step-")
            self.assertTrue((self.run_folder / f"step-{last['step']:08}" / "manifest.json").exists())
            self.no_rank_is_left()

    def test_what_was_saved_then_goes_on(self):
        stop(self.start_and_wait(*FOREVER, "--set", "training.reproducible=true"))
        done = max(losses(self.run_folder))
        more = ("--set", f"training.max_steps={done + 3}", "--set", "training.reproducible=true")
        self.train("--resume", "auto", *more)
        parts = losses(self.run_folder)
        self.run_folder = self.folder / "whole"
        self.train(*more)
        self.assertEqual(parts, losses(self.run_folder))

    def test_twice_leaves_at_once(self):
        process = self.start_and_wait(*FOREVER)
        ranks = self.ranks()
        os.kill(ranks[1], signal.SIGSTOP)  # so that no step can be finished
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "A second signal kills them" in self.output(), "the first signal")
        os.kill(ranks[1], signal.SIGSTOP)
        wait_until(lambda: "waiting for" in self.output() or process.poll() is not None, "a word about the wait")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(20), 130, self.output())
        self.says(self.output(), "SIGINT again: killed ", "stopped by SIGINT to the launcher, sent twice")
        self.no_rank_is_left()

    def test_a_signal_reaches_the_ranks_of_fsdp_run(self):
        for number, code in ((signal.SIGTERM, REQUEUE), (signal.SIGUSR1, REQUEUE), (signal.SIGINT, OK)):
            self.run_folder = self.folder / f"run-{number}"
            process = self.start_and_wait(words=[FSDP, "run", "--nproc-per-node", "2", *self.words(*FOREVER)])
            self.assertEqual(len(self.ranks()), 2)
            self.assertEqual(stop(process, number), code, self.output())
            self.assertEqual(len(records(self.run_folder, "end")), 1)
            self.no_rank_is_left()

    def test_before_the_first_step_there_is_nothing_to_save_but_the_run_is_to_start_again(self):
        for number, code in ((signal.SIGTERM, REQUEUE), (signal.SIGUSR1, REQUEUE), (signal.SIGINT, OK)):
            node = environment(NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
            process = self.start("--num-nodes", "2", env=node)  # the ranks wait for those of the other node
            wait_until(lambda: "waiting for all 4 ranks to come" in self.output(), "the ranks", 30)
            self.assertEqual(stop(process, number), code, self.output())
            self.no_rank_is_left()

    def test_a_signal_in_the_last_step_leaves_nothing_to_do(self):
        process = self.start_and_wait("--set", "training.max_steps=400", "--set", "checkpoint.every_steps=0")
        code = stop(process)
        self.assertEqual(code, OK if max(losses(self.run_folder)) == 400 else REQUEUE, self.output())


class Kills(TrainTest):
    def test_a_killed_rank_is_named_first(self):
        for victim in (1, 0):
            self.run_folder = self.folder / f"run-{victim}"
            process = self.start_and_wait(*FOREVER)
            os.kill(self.ranks()[victim], signal.SIGKILL)
            self.assertEqual(process.wait(30), 137, self.output())
            ends = [line for line in self.output().splitlines() if "rank" in line and "ended" in line]
            self.assertTrue(ends[0].startswith(f"fsdp: rank {victim} of 2 on "), self.output())
            self.says(ends[0], "was ended by SIGKILL (signal 9)", "out-of-memory killer")
            before = self.output()[:self.output().index(ends[0])]
            self.assertNotIn("died", before, "the other rank's complaint comes later")
            self.no_rank_is_left()

    def test_no_rank_outlives_the_launcher(self):
        process = self.start_and_wait(*FOREVER, "--devices", "3")
        self.assertEqual(len(self.ranks()), 3)
        process.kill()
        process.wait()
        self.no_rank_is_left()
        more = f"training.max_steps={max(losses(self.run_folder)) + 50}"
        self.train("--resume", "auto", "--devices", "3", "--set", more)


class Failures(TrainTest):
    def test_not_finite(self):
        text = self.train("--set", "optimizer.lr=1000", "--set", "training.max_skipped_steps=0", "--set",
                          "training.gradient_clipping=0", "--set", "optimizer.name=sgd", "--set",
                          "training.max_steps=200", expect=NUMERIC)
        self.says(text, "1 steps in a row had gradients that are not finite (training.max_skipped_steps: 0)",
                  "A lower optimizer.lr", "ended with exit code 6")

    def test_damaged_checkpoint(self):
        self.train("--set", "checkpoint.keep_last=1")
        folder = self.run_folder / "step-00000004"
        for file in folder.glob("*.safetensors"):
            self.flip(file, -5)
        text = self.train("--resume", "auto", "--set", "training.max_steps=8", expect=CHECKPOINT)
        self.says(text, "damaged", "step-00000004")
        text = self.train("--run", "other", "--set", f"training.init_from={self.run_folder}", expect=CHECKPOINT)
        self.says(text, "damaged")

    def test_a_damaged_latest_checkpoint_falls_back(self):
        self.train("--set", "checkpoint.keep_last=2")
        for file in (self.run_folder / "step-00000004").glob("*.safetensors"):
            self.flip(file, -5)
        text = self.train("--resume", "auto", "--set", "training.max_steps=6")
        self.says(text, "step-00000002, which 2 ranks saved")
        self.assertEqual(sorted(losses(self.run_folder)), [1, 2, 3, 4, 5, 6])

    def test_storage(self):
        file = self.folder / "file"
        file.write_text("")
        self.says(self.train("--run", file, expect=STORAGE), f"fsdp: cannot create {file}", "--run DIR names another")
        self.says(self.train("--run", file / "run", expect=STORAGE), "cannot create")

    def test_a_checkpoint_that_cannot_be_written(self):
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))

        text = self.train("--devices", "1", expect=STORAGE, preexec_fn=small_files)
        self.says(text, "fsdp: rank 0 of 1 on ", "File too large", f"cannot write {self.run_folder}/")
        self.assertEqual(text.count("File too large"), 1)
        self.no_rank_is_left()

    def test_read_only_folder(self):
        if os.geteuid() == 0:
            return  # root may write there
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)
        self.says(self.train(expect=STORAGE), "cannot create")

    def test_data_that_cannot_be_read(self):
        text = self.train("--set", "data.format=text", "--set", "data.train=nothing.txt", expect=USAGE)
        self.says(text, "nothing.txt")
        (self.folder / "short.txt").write_text("too short")
        text = self.train("--set", "data.format=text", "--set", "data.train=short.txt", expect=USAGE)
        self.says(text, "ended with exit code 2")

    def test_port_in_use(self):
        with socket.socket() as used:
            used.bind(("127.0.0.1", 0))
            used.listen()
            variables = environment(NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(used.getsockname()[1]))
            text = self.train("--num-nodes", "2", "--devices", "1", expect=RENDEZVOUS, env=variables)
        self.says(text, "in use", variables["MASTER_PORT"])

    def test_unknown_names(self):
        self.says(self.train("--stage", "stage3", expect=USAGE), "stage3", "did you mean 'stage")
        self.says(self.train("--devices", "0", expect=USAGE), "--devices")
        self.says(self.train("--devices", "none", expect=USAGE), "--devices")


if __name__ == "__main__":
    main()
