"""ctl_test.py FSDP WORKER: `fsdp ctl` asks and steers a run; strangers at its control socket disturb nothing."""

import json
import os
import signal
import socket
import stat
import subprocess
import time

from command import FSDP, OK, USAGE, main
from training import FAILED, FOREVER, TrainTest, losses, records, wait_until

NO_SAVES = (*FOREVER, "--set", "checkpoint.every_steps=0")


class CtlTest(TrainTest):
    def control(self):
        return json.loads((self.run_folder / "control.json").read_text())

    def ctl(self, *words, expect=OK):
        return self.fsdp("ctl", self.run_folder, *words, expect=expect)

    def asked(self, *words):
        return json.loads(self.ctl(*words, "--json"))

    def fails(self, *says):
        """`fsdp ctl RUN status` ends with exit code 1 and one line that has these words."""
        done = subprocess.run([FSDP, "ctl", self.run_folder, "status"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (FAILED, "", 1), done.stderr)
        self.says(done.stderr, "fsdp: ", *says)

    def connect(self):
        control = self.control()
        stranger = socket.create_connection((control["host"], control["port"]), timeout=20)
        self.addCleanup(stranger.close)
        return stranger


class Asks(CtlTest):
    def test_status_and_metrics_of_a_run_that_trains(self):
        process = self.start_and_wait(*NO_SAVES)
        first = self.asked("status")
        self.assertEqual((first["run"], first["ranks"], first["last_step"], first["checkpoint"]),
                         (str(self.run_folder), 2, 1000000, ""))
        self.assertEqual(first["pid"], self.ranks()[0])
        self.assertIn(first["phase"], ("data", "step", "evaluation", "checkpoint"))
        wait_until(lambda: self.asked("status")["step"] > first["step"], "a later step")
        answer = self.asked("metrics")["metrics"]
        wait_until(lambda: answer["step"] in losses(self.run_folder), "the same step in metrics.jsonl")
        self.assertEqual(answer["loss"], losses(self.run_folder)[answer["step"]])
        self.says(self.ctl("status"), "step", "of 1,000,000", "ranks", "none yet")
        self.says(self.ctl("metrics"), "loss", "times.forward")
        self.assertIsNone(process.poll())

    def test_status_answers_while_a_rank_is_stopped(self):
        self.start_and_wait(*NO_SAVES)
        os.kill(self.ranks()[1], signal.SIGSTOP)
        self.addCleanup(os.kill, self.ranks()[1], signal.SIGCONT)
        wait_until(lambda: self.asked("status")["phase_seconds"] > 1, "a step that does not end", 20)
        self.assertEqual(self.asked("status")["phase"], "step")

    def test_save_says_for_whom_it_waits(self):
        self.start_and_wait(*NO_SAVES)
        stopped = self.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: self.asked("status").get("waiting"), "rank 0 to wait for rank 1", 20)
        waiting = subprocess.Popen([FSDP, "ctl", self.run_folder, "save", "--timeout", "30"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertRegex(waiting.stderr.readline(), r"^fsdp: save waits: the run is in step \d+, step, for 0:0\d.* rank 1 ")
        os.kill(stopped, signal.SIGCONT)
        out, err = waiting.communicate(timeout=60)
        self.assertEqual((waiting.returncode, err), (OK, ""))
        self.says(out, "saved " + str(self.run_folder))

    def test_save_saves_on_all_ranks_and_returns_when_it_is_complete(self):
        for background in ("true", "false"):
            self.run_folder = self.folder / background
            process = self.start_and_wait(*NO_SAVES, "--set", "checkpoint.background=" + background)
            answer = self.asked("save")
            self.assertEqual(answer["checkpoint"], f"{self.run_folder}/step-{answer['step']:08}")
            self.assertEqual((self.run_folder / "latest").read_text().strip(), f"step-{answer['step']:08}")
            self.fsdp("ckpt", "verify", answer["checkpoint"])
            self.assertEqual(self.asked("status")["checkpoint"], answer["checkpoint"])
            self.says(self.ctl("save"), "saved " + str(self.run_folder) + "/step-")
            self.assertIsNone(process.poll(), self.output())
            self.assertEqual(self.asked("stop")["ok"], True)
            self.assertEqual(process.wait(60), OK, self.output())

    def test_stop_ends_all_ranks_in_order(self):
        process = self.start_and_wait(*NO_SAVES)
        said = self.ctl("stop")
        self.assertEqual(process.wait(60), OK, self.output())
        end = records(self.run_folder, "end")[0]
        self.assertEqual((end["reason"], end["exit"]), ("fsdp ctl stop", 0))
        self.assertEqual(said, f"stopped after step {end['step']}; saved {self.run_folder}/step-{end['step']:08}\n")
        self.assertFalse((self.run_folder / "control.json").exists())
        self.train("--resume", "auto", "--set", f"training.max_steps={end['step'] + 2}")

    def test_many_ask_at_once(self):
        self.start_and_wait(*NO_SAVES)
        asking = [subprocess.Popen([FSDP, "ctl", self.run_folder, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                  for what in ("save", "status", "save", "metrics", "save")]
        for one in asking:
            out, err = one.communicate(timeout=60)
            self.assertEqual(one.returncode, OK, (out, err))
        self.ctl("stop")


class Refusals(CtlTest):
    def test_a_run_that_is_not_going_on(self):
        self.refused(USAGE, "ctl", self.folder / "none", "status", says=["found no run"])
        self.train()
        self.fails("no ranks train in this run now", "--resume auto")
        self.refused(USAGE, "ctl", self.run_folder, "reboot", says=["reboot"])

    def test_a_run_that_was_killed(self):
        process = self.start_and_wait(*NO_SAVES)
        os.kill(self.ranks()[0], signal.SIGKILL)
        process.wait(30)
        self.fails("does not listen", "have ended")
        self.start(*NO_SAVES, "--resume", "auto")
        wait_until(lambda: self.control()["pid"] in self.ranks().values(), "a control.json of the new ranks")
        self.assertEqual(self.asked("status")["pid"], self.ranks()[0])

    def test_another_program_at_the_port_of_a_killed_run(self):
        self.train()
        with socket.create_server(("127.0.0.1", 0)) as other:
            (self.run_folder / "control.json").write_text(json.dumps(
                {"host": "127.0.0.1", "port": other.getsockname()[1], "token": "t", "pid": 1, "run": "r"}))
            asking = subprocess.Popen([FSDP, "ctl", self.run_folder, "status"], stderr=subprocess.PIPE, text=True)
            with other.accept()[0] as client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            self.assertIn("is not this run", asking.communicate(timeout=20)[1])

    def test_a_failed_run_says_so_to_who_waits(self):
        process = self.start_and_wait(*NO_SAVES)
        os.kill(self.ranks()[1], signal.SIGSTOP)
        waiting = subprocess.Popen([FSDP, "ctl", self.run_folder, "save"], stderr=subprocess.PIPE, text=True)
        time.sleep(0.3)
        os.kill(self.ranks()[1], signal.SIGKILL)
        self.assertEqual(waiting.wait(30), FAILED)
        self.assertRegex(waiting.stderr.read(), "the run failed before it had saved|ended before it answered")
        waiting.stderr.close()
        process.wait(30)


class Strangers(CtlTest):
    def test_only_the_user_of_the_run_can_ask_and_only_from_this_machine(self):
        self.start_and_wait(*NO_SAVES)
        self.assertEqual(stat.S_IMODE((self.run_folder / "control.json").stat().st_mode), 0o600)
        self.assertEqual(self.control()["host"], "127.0.0.1")
        for what in ("status", "metrics", "save", "stop"):
            for token in ("", "0" * 32, self.control()["token"][:-1], None, 7):
                stranger = self.connect()
                stranger.sendall(json.dumps({"token": token, "do": what}).encode() + b"\n")
                answer = json.loads(stranger.makefile().read())
                self.assertEqual(answer["ok"], False)
        done = self.asked("status")["step"]
        wait_until(lambda: self.asked("status")["step"] > done + 3, "steps after the strangers")
        self.assertEqual(self.asked("status")["checkpoint"], "", "nothing was saved")

    def test_silence_and_floods_leave_room_for_requests(self):
        self.start_and_wait(*NO_SAVES)
        silent = [self.connect() for _ in range(150)]
        for _ in range(5):
            flood = self.connect()
            try:
                flood.sendall(b"x" * 1_000_000)  # longer than a request can be
            except OSError:
                pass  # closed: right
            self.assertEqual(self.asked("status")["ok"], True)
        self.assertEqual(silent[0].recv(1), b"", "the oldest is closed")
        done = self.asked("status")["step"]
        wait_until(lambda: self.asked("status")["step"] > done + 3, "steps after the strangers")



if __name__ == "__main__":
    main()
