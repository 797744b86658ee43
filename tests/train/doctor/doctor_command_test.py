"""doctor_command_test.py FSDP WORKER: `fsdp doctor` alone and under launchers."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "app"))

from command import FSDP, OK, CommandTest, main
from training import FAILED, RENDEZVOUS, environment, free_port

QUICK = ("--megabytes", "1")


class DoctorTest(CommandTest):
    def doctor(self, *words, launcher=(), expect=OK, limit=None, **own):
        """What `fsdp doctor` printed to stdout."""
        done = subprocess.run([*map(str, launcher), FSDP, "doctor", *QUICK, *map(str, words)], capture_output=True, text=True,
                              timeout=120, env=environment(**own), cwd=self.folder, preexec_fn=limit)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.said = done.stderr
        return done.stdout

    def findings(self, report, subject):
        every = report["run"] + [one for host in report["hosts"] for one in host["findings"]]
        return [one for one in every if one["subject"] == subject]


class Alone(DoctorTest):
    def test_it_reports_the_machine_the_collectives_and_the_links(self):
        text = self.doctor()
        for subject in ("processors", "memory", "shared memory", "limits: open files", "limits: locked memory", "clock", "disk",
                        "names", "ports", "interfaces", "LibTorch", "collectives", "links"):
            self.assertRegex(text, rf"(?m)^(ok|warning) +{subject} ")
        for operation in ("all_gather", "reduce_scatter", "all_reduce"):
            self.assertRegex(text, rf"{operation} +[0-9.e+]+ [GM]B/s, small ones [0-9.e+]+ [um]s")
        self.assertRegex(text, r"rank 0 on \S+ -> rank 1 on \S+ +[0-9.e+]+ [GM]B/s")
        self.assertRegex(text.splitlines()[-1], r"^no problems, (no|\d+) warnings?$")
        self.assertEqual(list(self.folder.iterdir()), [], "it left files")

    def test_json(self):
        report = json.loads(self.doctor("--json", "--devices", "3"))
        self.assertEqual((report["problems"], len(report["hosts"])), (0, 1))
        self.assertIn(", ranks 0 to 2", report["hosts"][0]["name"])
        self.assertEqual(len(report["links"]), 6, "both directions of three pairs")
        self.assertTrue(all(link["bytes_per_second"] > 0 and link["latency"] > 0 for link in report["links"]))
        self.assertIn("right on 3 ranks", self.findings(report, "collectives")[0]["text"])

    def test_on_a_node_it_says_that_it_checks_this_one_only(self):
        for node in ("0", "1"):
            text = self.doctor("--devices", "1", NODE_RANK=node, MASTER_ADDR="node0", MASTER_PORT="29500")
            self.assertRegex(text, "no problems")
            self.assertIn(f"NODE_RANK={node} is set, but only this machine is checked", self.said)
            self.assertIn(f"fsdp run --nnodes N --node-rank {node} ", self.said)

    def test_one_rank(self):
        self.assertNotIn("links", self.doctor("--devices", "1"))

    def test_a_problem_has_advice_and_an_exit_code(self):
        def few_files():
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))  # ranks raise a soft limit themselves
        text = self.doctor(expect=FAILED, limit=few_files)
        self.assertRegex(text, r"PROBLEM +limits: open files +200, at most \d+; 2 ranks need about 272\n +-> Raise the hard limit")
        self.assertEqual(self.said, "")
        text = self.doctor(expect=FAILED, GLOO_SOCKET_IFNAME="eth77")
        self.assertIn("GLOO_SOCKET_IFNAME=eth77 names no interface that is up here", text)

    def test_a_folder_that_cannot_be_written(self):
        (self.folder / "file").write_text("")
        report = json.loads(self.doctor("--json", "--run", "/proc/self/nothing", expect=FAILED))
        self.assertEqual(self.findings(report, "disk")[0]["level"], "problem")

    def test_without_the_worker_the_machine_is_looked_at(self):
        text = self.doctor(expect=FAILED, FSDP_WORKER="/nonexistent")
        self.assertRegex(text, r"(?m)^PROBLEM +fsdp-worker ")
        self.assertRegex(text, r"(?m)^(ok|warning) +processors ")


class Launched(DoctorTest):
    def test_under_fsdp_run(self):
        out = self.doctor(launcher=(FSDP, "run", "--nproc-per-node", "3"))
        self.assertIn(", ranks 0 to 2", out)
        self.assertTrue(all(line.startswith("[rank 0] ") for line in out.splitlines()), "rank 0 alone prints")

    def test_under_a_foreign_launcher(self):
        port = free_port()
        place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        second = subprocess.Popen([FSDP, "doctor", *QUICK], stdout=subprocess.PIPE, cwd=self.folder,
                                  env=environment(RANK="1", LOCAL_RANK="1", **place))
        out = self.doctor(RANK="0", LOCAL_RANK="0", **place)
        self.assertEqual(second.communicate(timeout=60)[0], b"")
        self.assertIn("MASTER_PORT " + port, out)

    def test_ranks_that_do_not_meet(self):
        out = self.doctor("--timeout", "2", expect=RENDEZVOUS, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=free_port())
        self.assertRegex(out, r"(?m)^PROBLEM +meeting +1 of 2 ranks came")
        self.assertRegex(out, r"PROBLEM +names +MASTER_ADDR 127.0.0.1")
        out = self.doctor("--timeout", "2", expect=RENDEZVOUS, RANK="1", WORLD_SIZE="2", MASTER_ADDR="no-such-host.invalid",
                          MASTER_PORT=free_port())
        self.assertIn("MASTER_ADDR no-such-host.invalid: ", out)


if __name__ == "__main__":
    main()
