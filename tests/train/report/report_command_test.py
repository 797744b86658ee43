"""report_command_test.py FSDP WRITE_RUN: `fsdp report` as a user types it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

FSDP, WRITE_RUN = sys.argv[1:3]


def fsdp(*words, environment=None):
    done = subprocess.run([FSDP, *map(str, words)], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


class Report(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.run_folder = pathlib.Path(self.temp.name) / "run"
        self.run_folder.mkdir()
        subprocess.run([WRITE_RUN, self.run_folder, "40"], check=True, stdout=subprocess.DEVNULL)

    def test_writes_one_file_into_the_runs_folder(self):
        code, out, _ = fsdp("report", f"{self.run_folder}/")
        self.assertEqual(code, 0)
        self.assertRegex(out, rf"^{self.run_folder}/report.html: 40 steps, [0-9.]+ KiB\n$")
        self.assertIn("gpt2-tiny", (self.run_folder / "report.html").read_text())

    def test_out_names_another_file(self):
        code, out, _ = fsdp("report", self.run_folder, "--out", f"{self.temp.name}/a.html")
        self.assertEqual((code, out.split(":")[0]), (0, f"{self.temp.name}/a.html"))
        self.assertFalse((self.run_folder / "report.html").exists())

    def test_a_torn_last_line_is_told(self):
        with open(self.run_folder / "metrics.jsonl", "a") as file:
            file.write('{"kind":"step","ti')
        code, out, _ = fsdp("report", self.run_folder)
        self.assertEqual(code, 0)
        self.assertIn("skipped: the last line is not complete", out)

    def test_misuse_is_refused(self):
        for words, why in (
            ([f"{self.temp.name}/no"], "does not exist"),
            ([self.temp.name], "no folder of a run"),
            ([], "RUN is required"),
            ([self.run_folder, "--opne"], "--opne"),
        ):
            code, out, errors = fsdp("report", *words)
            self.assertEqual((code, out), (2, ""), errors)
            self.assertIn(why, errors)

    def test_a_run_that_has_not_begun_is_refused(self):
        (self.run_folder / "metrics.jsonl").write_text("")
        code, _, errors = fsdp("report", self.run_folder)
        self.assertEqual(code, 2)
        self.assertIn("has not started to train yet", errors)

    def test_a_file_that_cannot_be_written_is_an_error_of_storage(self):
        code, _, errors = fsdp("report", self.run_folder, "--out", f"{self.temp.name}/no/a.html")
        self.assertEqual(code, 7, errors)
        self.assertIn("no/a.html: No such file", errors)

    def test_open_starts_the_browser(self):
        program = pathlib.Path(self.temp.name) / "xdg-open"
        program.write_text(f'#!/bin/sh\necho "$1" >{self.temp.name}/opened\n')
        program.chmod(0o755)
        environment = {"PATH": f"{self.temp.name}:/usr/bin:/bin"}
        self.assertEqual(fsdp("report", self.run_folder, "--open", environment=environment)[0], 0)
        opened = pathlib.Path(self.temp.name) / "opened"
        for _ in range(1000):
            if opened.exists() and opened.read_text():
                break
            subprocess.run(["sleep", "0.01"], check=True)
        self.assertEqual(opened.read_text().strip(), f"{self.run_folder}/report.html")

    def test_without_a_browser_it_says_what_to_do(self):
        code, out, _ = fsdp("report", self.run_folder, "--open", environment={"PATH": ""})
        self.assertEqual(code, 0)
        self.assertIn("open the file in a browser yourself", out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
