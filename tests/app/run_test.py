"""run_test.py FSDP WORKER: `fsdp run`: any program as the ranks of one machine. Programs here are shell scripts."""

import os
import signal
import subprocess
import time
from pathlib import Path

from command import FSDP, OK, USAGE, CommandTest, main
from training import environment, processes_of, wait_until

VARIABLES = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
             "ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
             "TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE NODE_RANK OMP_NUM_THREADS").split()


class RunTest(CommandTest):
    def start(self, *words, **own):
        process = subprocess.Popen([FSDP, "run", *words], env=environment(**own), cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def run_it(self, *words, expect=OK, **own):
        """(stdout, stderr) of `fsdp run`."""
        process = self.start(*words, **own)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, expect, out + err)
        return out, err

    def refused_run(self, *words, says):
        _, err = self.run_it(*words, expect=USAGE)
        for word in says:
            self.assertIn(word, err)

    def started(self, name):
        """Waits for a file that ranks write, and returns its lines."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), name)
        return path.read_text().split()


class Options(RunTest):
    def test_every_variable_of_torchrun_is_set(self):
        out, _ = self.run_it("--nproc-per-node=2", "--rdzv-id", "seven", "--max-restarts", "4", "sh", "-c",
                             "for name in " + " ".join(VARIABLES) + '; do eval echo $name=\\$$name; done')
        for rank in range(2):
            found = dict(line.split("] ")[1].split("=") for line in out.splitlines() if f"[rank {rank}]" in line)
            self.assertEqual(sorted(found), sorted(VARIABLES))
            self.assertNotIn("", found.values())
            self.assertEqual((found["RANK"], found["WORLD_SIZE"], found["NODE_RANK"]), (str(rank), "2", "0"))
            self.assertEqual((found["TORCHELASTIC_RUN_ID"], found["TORCHELASTIC_MAX_RESTARTS"]), ("seven", "4"))

    def test_both_spellings(self):
        values = {"nproc_per_node": "2", "nnodes": "1", "node_rank": "0", "master_addr": "127.0.0.1", "master_port": "0",
                  "max_restarts": "0", "monitor_interval": "5", "log_dir": "logs", "local_ranks_filter": "0",
                  "rdzv_id": "x", "rdzv_backend": "c10d"}
        for spell in (lambda name: name, lambda name: name.replace("_", "-")):
            words = [word for name, value in values.items() for word in ("--" + spell(name), value)]
            out, _ = self.run_it(*words, "--standalone", spell("--no_python"), "sh", "-c", "echo $WORLD_SIZE")
            self.assertEqual(out, "[rank 0] 2\n")

    def test_variables_of_torchrun_stand_for_options(self):
        variables = {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1"}
        out, _ = self.run_it("sh", "-c", "echo $WORLD_SIZE", **variables)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0] 2", "[rank 1] 2"])
        out, _ = self.run_it("--nproc-per-node", "1", "sh", "-c", "echo $WORLD_SIZE", **variables)
        self.assertEqual(out, "1\n", "what is typed counts more")

    def test_the_programs_own_options_are_its_own(self):
        for separator in ([], ["--"]):
            out, _ = self.run_it("--nproc-per-node", "1", *separator, "printf", "%s.", "--nproc-per-node", "--help", "--", "-x")
            self.assertEqual(out, "--nproc-per-node.--help.--.-x.")

    def test_fsdp_is_this_command(self):
        self.assertIn("fsdp.cpp", self.run_it("fsdp", "--version", PATH="/nonexistent")[0])

    def test_what_makes_no_sense_is_refused(self):
        self.refused_run(says=["needs a program"])
        self.refused_run("--nproc-per-node", "two", "true", says=["--nproc-per-node two", "gpu, cpu or auto"])
        self.refused_run("--nproc-per-node", "0", "true", says=["--nproc-per-node 0"])
        self.refused_run("--nprocs", "2", "true", says=["no option --nprocs"])
        self.refused_run("--standalone", "--nnodes", "2", "true", says=["--standalone"])
        self.refused_run("--max-restarts", "-1", "true", says=["--max-restarts -1"])
        self.refused_run("--rdzv-endpoint", "a:1", "--master-addr", "b", "true", says=["--rdzv-endpoint a:1", "leave one out"])
        self.refused_run("--rdzv-backend", "etcd", "true", says=["etcd", "c10d"])
        self.refused_run("--monitor-interval", "0", "true", says=["--monitor-interval 0"])
        self.refused_run("--numa-binding", "core", "true", says=["--numa-binding core", "none, node or exclusive"])
        self.refused_run("--rdzv-conf", "join_timeout", "true", says=["--rdzv-conf join_timeout", "join_timeout=SECONDS"])
        self.refused_run("--rdzv-endpoint", "foo", "true", says=["--rdzv-endpoint foo", "HOST:PORT", "foo:29500"])
        self.refused_run("--tee", "7", "true", says=["--tee 7"])
        self.refused_run("--local-ranks-filter", "3", "true", says=["--local-ranks-filter 3"])
        self.refused_run("no-such-program", says=["no-such-program", "PATH"])
        (self.folder / "train.py").write_text("print()")
        self.refused_run("train.py", says=["is a Python script: type python3 before it"])


class Processors(RunTest):
    def of_ranks(self, binding):
        out, _ = self.run_it("--nproc-per-node", "2", "--numa-binding", binding, "sh", "-c", "grep Cpus_allowed_list /proc/$$/status")
        return sorted(line.split()[-1] for line in out.splitlines())

    def test_ranks_have_shares_of_the_processors(self):
        every = Path("/proc/self/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
        self.assertEqual(self.of_ranks("none"), [every, every])
        if len(os.sched_getaffinity(0)) > 1:
            self.assertEqual(len(set(self.of_ranks("exclusive"))), 2)


class Output(RunTest):
    SAYS = ("sh", "-c", "echo out of $RANK; echo err of $RANK >&2")

    def test_lines_have_their_rank_and_stay_whole(self):
        out, _ = self.run_it("--nproc-per-node", "4", "sh", "-c", "for i in $(seq 500); do echo line $i of $RANK; done")
        lines = out.splitlines()
        self.assertEqual(sorted(lines), sorted(f"[rank {r}] line {i} of {r}" for r in range(4) for i in range(1, 501)))

    def test_logs_are_whole_whatever_is_shown(self):
        out, err = self.run_it("--nproc-per-node", "3", "--log-dir", "logs", "--local-ranks-filter", "1", *self.SAYS)
        self.assertEqual((out, err), ("[rank 1] out of 1\n", "[rank 1] err of 1\n"))
        for rank in range(3):
            text = (self.folder / "logs" / f"rank-{rank}.log").read_text()
            self.assertEqual(sorted(text.splitlines()), [f"err of {rank}", f"out of {rank}"])

    def test_tee_names_streams_by_local_rank(self):
        out, err = self.run_it("--nproc-per-node", "3", "--tee", "0:1,2:2", *self.SAYS)
        self.assertEqual((out, err), ("[rank 0] out of 0\n", "[rank 2] err of 2\n"))

    def test_a_restart_is_marked_in_the_logs(self):
        self.run_it("--log-dir", "logs", "--max-restarts", "1", "sh", "-c", "echo hello; exit 1", expect=1)
        self.assertEqual((self.folder / "logs" / "rank-0.log").read_text(), "hello\n---- restart 1 ----\nhello\n")


class Ends(RunTest):
    def test_the_first_failed_rank_is_named_first_and_gives_the_exit_code(self):
        _, err = self.run_it("--nproc-per-node", "4", "sh", "-c",
                             "[ $RANK = 2 ] && { echo no such file >&2; exit 3; }; sleep 0.3; exit 5", expect=3)
        lines = [line for line in err.splitlines() if line.startswith("fsdp: ")]
        self.assertRegex(lines[0], r"^fsdp: rank 2 of 4 on \S+ ended with exit code 3$")
        self.assertIn("  [rank 2] no such file\n", err)
        self.assertIn("then ranks 0, 1, 3 ended with exit code 5", err)

    def test_a_signal_is_named_and_counted_from_128(self):
        _, err = self.run_it("--nproc-per-node", "2", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 60", expect=139)
        self.assertIn("rank 1 of 2 on", err)
        self.assertIn("SIGSEGV", err)

    def interrupt(self, number, script, *words):
        process = self.start("--nproc-per-node", "2", "sh", "-c", script, *words)
        self.started("0"), self.started("1")
        process.send_signal(number)
        (self.folder / "0").unlink(), (self.folder / "1").unlink()
        return process

    def test_ctrl_c_once_lets_the_ranks_save(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.interrupt(number, "trap 'sleep 0.3; echo saved; exit 0' TERM; echo up > $RANK; "
                                             "while :; do sleep 0.05; done")
            out, err = process.communicate(timeout=30)
            self.assertEqual((process.returncode, sorted(out.splitlines())), (0, ["[rank 0] saved", "[rank 1] saved"]), err)

    def test_nohup_protects_from_a_terminal_that_is_closed(self):
        process = subprocess.Popen(["nohup", FSDP, "run", "--nproc-per-node", "2", "sh", "-c",
                                    "echo up > $RANK; sleep 1; echo done"], env=environment(), cwd=self.folder, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started("0"), self.started("1")
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=30)
        self.assertEqual((process.returncode, sorted(out.splitlines())), (0, ["[rank 0] done", "[rank 1] done"]), err)

    def through_a_pipe(self, *words):
        """A launcher whose output goes to a pipe; the reading end of the pipe."""
        read, write = os.pipe()
        process = subprocess.Popen([FSDP, "run", "--nproc-per-node", "2", *words], env=environment(), cwd=self.folder,
                                   stdin=subprocess.DEVNULL, stdout=write, stderr=write)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(write)
        return process, read

    def test_ranks_save_though_the_reader_has_ended_with_the_same_ctrl_c(self):
        process, read = self.through_a_pipe("sh", "-c", "trap 'sleep 0.5; echo saved >$RANK.saved; exit 0' TERM; "
                                                        "echo up > $RANK; while :; do echo line; sleep 0.05; done")
        self.started("0"), self.started("1")
        os.close(read)  # as `tee` ends with Ctrl-C
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(30), 0)
        self.assertTrue((self.folder / "0.saved").exists() and (self.folder / "1.saved").exists())

    def test_a_reader_that_is_stuck_keeps_no_signal_from_the_ranks(self):
        process, read = self.through_a_pipe("sh", "-c", "trap 'echo saved >$RANK.saved; exit 75' TERM; echo up > $RANK; "
                                                        "while :; do head -c 10000 /dev/zero | tr '\\0' x; echo; done")
        self.addCleanup(os.close, read)
        self.started("0"), self.started("1")
        time.sleep(0.5)  # the pipe is full
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 75)
        self.assertTrue((self.folder / "0.saved").exists() and (self.folder / "1.saved").exists())

    def test_a_reader_that_is_stuck_hides_no_failed_rank(self):
        process, read = self.through_a_pipe("sh", "-c", "echo up > $RANK; [ $RANK = 1 ] && sleep 1 && exit 3; "
                                                        "while :; do head -c 10000 /dev/zero | tr '\\0' x; echo; done")
        self.addCleanup(os.close, read)
        self.assertEqual(process.wait(50), 3)

    def test_a_slow_reader_gets_every_line(self):
        process, read = self.through_a_pipe("sh", "-c", "for i in $(seq 20000); do echo $i; done")
        time.sleep(1.5)
        with open(read) as pipe:
            lines = pipe.read().splitlines()
        self.assertEqual((process.wait(30), len(lines)), (0, 40000))

    def test_a_failure_after_a_signal_ends_the_others(self):
        process = self.interrupt(signal.SIGTERM, "trap '[ $RANK = 1 ] && exit 3' TERM; echo up > $RANK; "
                                                 "while :; do sleep 0.05; done")
        begin = time.monotonic()
        _, err = process.communicate(timeout=80)
        self.assertEqual(process.returncode, 3, err)
        self.assertIn("rank 1 of 2 on", err)
        self.assertGreater(time.monotonic() - begin, 20, "the other one may be saving")

    def test_ctrl_c_twice_kills(self):
        mark = f"{self.folder}/mark"
        process = self.interrupt(signal.SIGINT, "trap '' TERM; echo up > $RANK; while :; do sleep 0.05; done", mark)
        time.sleep(0.4)  # longer than a signal counts as a repetition
        self.assertGreater(len(processes_of(mark)), 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(processes_of(mark), {})

    def test_ranks_that_saved_and_ask_for_more_give_75_and_no_report(self):
        process = self.interrupt(signal.SIGTERM, "trap 'exit 75' TERM; echo up > $RANK; while :; do sleep 0.05; done")
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 75)
        self.assertNotIn("exit code", err)

    def test_a_full_disk_of_the_logs_keeps_no_rank_from_starting_again(self):
        (self.folder / "rank-0.log").symlink_to("/dev/full")
        _, err = self.run_it("--nproc-per-node", "1", "--max-restarts", "2", "--log-dir", ".", "sh", "-c",
                             "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3")
        self.assertIn("restart 1 of 2", err)

    def test_ranks_that_got_a_signal_of_their_own_are_not_started_again(self):
        out, err = self.run_it("--nproc-per-node", "2", "--max-restarts", "3", "sh", "-c", "echo start; exit 75", expect=75)
        self.assertEqual((sorted(out.splitlines()), err), (["[rank 0] start", "[rank 1] start"], ""))

    def test_no_rank_outlives_the_launcher(self):
        mark = f"{self.folder}/mark"
        process = self.start("--nproc-per-node", "3", "sh", "-c", "echo $$ > $RANK; sleep 1000 & wait", mark)
        for rank in range(3):
            self.started(str(rank))
        self.assertEqual(len(processes_of(mark)), 5, "three ranks, the launcher and its guardian")
        process.kill()
        process.wait()
        wait_until(lambda: not processes_of(mark), "the ranks' end", 10)


class Restarts(RunTest):
    def test_all_ranks_are_started_again(self):
        out, err = self.run_it("--nproc-per-node", "2", "--max-restarts", "3", "sh", "-c",
                               "echo start $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; "
                               "[ $RANK = 1 ] && kill -9 $$; sleep 60")
        self.assertEqual(sorted(out.splitlines()), [f"[rank {r}] start {n}" for r in range(2) for n in range(3)])
        self.assertEqual(err.count("starting all ranks again"), 2)
        self.assertIn("rank 1 of 2 on", err)
        self.assertIn("(restart 2 of 3)", err)

    def test_the_budget_ends(self):
        _, err = self.run_it("--max-restarts", "2", "sh", "-c", "exit 9", expect=9)
        self.assertEqual(err.count("starting all ranks again"), 2)

    def test_the_third_failure_in_one_step_ends_the_run(self):
        _, err = self.run_it("--max-restarts", "20", "--nproc-per-node", "2", "sh", "-c",
                             "echo 41 > $FSDP_STEP_FILE; exit 6", expect=6)
        self.assertEqual(err.count("starting all ranks again"), 2)
        self.assertIn("three starts in a row failed in step 41", err)

    def test_progress_between_failures_is_no_crash_loop(self):
        _, err = self.run_it("--max-restarts", "5", "sh", "-c",
                             "echo $((TORCHELASTIC_RESTART_COUNT / 2)) > $FSDP_STEP_FILE; exit 6", expect=6)
        self.assertEqual(err.count("starting all ranks again"), 5)

    def test_what_the_command_refuses_is_not_started_again(self):
        _, err = self.run_it("--max-restarts", "5", "fsdp", "train", "--nonsense", expect=USAGE)
        self.assertNotIn("starting all ranks again", err)
        self.assertIn("Not started again: the next start would be refused, too", err)

    def test_nothing_starts_again_after_a_signal(self):
        process = self.start("--max-restarts", "5", "sh", "-c", "trap 'exit 1' TERM; echo up > 0; while :; do sleep 0.05; done")
        self.started("0")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertNotIn("again (", err)


if __name__ == "__main__":
    main()
