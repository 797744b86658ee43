"""generate_test.py FSDP WORKER: `fsdp generate` on the runs of tiny models; what it prints, and what it refuses."""

import shutil
import subprocess
import tempfile

from command import FSDP, main
from training import CHECKPOINT, OK, USAGE, TrainTest, environment

TEXT = ("--set", "data.train=corpus.txt", "--set", "training.max_steps=4", "--set", "training.ema_decay=0.5")


class Generate(TrainTest):
    trained = None

    def setUp(self):
        """A copy of one run."""
        super().setUp()
        if Generate.trained is None:
            (self.folder / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
            self.train(*TEXT)
            Generate.trained = tempfile.mkdtemp()
            self.addClassCleanup(shutil.rmtree, Generate.trained)
            shutil.copytree(self.run_folder, Generate.trained, dirs_exist_ok=True, symlinks=True)
        else:
            shutil.copytree(Generate.trained, self.run_folder, symlinks=True)

    def generate(self, *arguments, run=None, expect=OK, env=None):
        """stdout and stderr."""
        few = () if "--max-tokens" in arguments else ("--max-tokens", "20")
        words = [FSDP, "generate", run or self.run_folder, *few, *arguments]
        done = subprocess.run(list(map(str, words)), capture_output=True, timeout=60, env=env or environment())
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        if expect != OK:
            self.assertEqual(done.stdout, b"")
        return done.stdout, done.stderr.decode()

    def refused(self, *arguments, says, **how):
        self.says(self.generate(*arguments, expect=USAGE, **how)[1], *says)

    def test_only_the_text_is_on_stdout(self):
        text, notes = self.generate("--prompt", "A rank is")
        self.assertTrue(text)
        self.assertNotIn(b"fsdp:", text)
        self.says(notes, f"loaded the averaged weights of {self.run_folder}/step-00000004")

    def test_seeds_and_counts(self):
        first = self.generate("--seed", "7")[0]
        self.assertEqual(self.generate("--seed", "7")[0], first)
        self.assertNotEqual(self.generate("--seed", "8")[0], first)
        both, notes = self.generate("--seed", "7", "--count", "2")
        self.assertTrue(both.startswith(first))
        self.says(notes, "text 1 of 2, seed 7", "text 2 of 2, seed 8")

    def test_sampling_flags_change_the_text(self):
        plain = self.generate("--seed", "7")[0]
        greedy = self.generate("--temperature", "0")[0]
        self.assertEqual(self.generate("--top-k", "1", "--seed", "3")[0], greedy)
        self.assertEqual(self.generate("--top-p", "0.000001", "--seed", "3")[0], greedy)
        self.assertNotEqual(plain, greedy)
        self.assertNotEqual(self.generate("--seed", "7", "--temperature", "3")[0], plain)
        self.assertNotEqual(self.generate("--seed", "7", "--prompt", "z")[0], plain)
        self.assertGreater(len(self.generate("--seed", "7", "--max-tokens", "60")[0]), len(plain))

    def test_steps_and_averages(self):
        self.says(self.generate("--step", "2")[1], "step-00000002")
        self.says(self.generate("--no-average")[1], f"loaded {self.run_folder}/step-00000004")
        self.refused("--step", "3", says=["flag --step: found 3, expected one of the saved steps: 2, 4"])

    def test_inside_a_launcher_it_is_one_process(self):
        """A shell inside torchrun has a rank's variables."""
        text = self.generate("--seed", "7")[0]
        variables = environment(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="9")
        self.assertEqual(self.generate("--seed", "7", env=variables)[0], text)

    def test_flags_out_of_range(self):
        for flag, value in (("--max-tokens", "0"), ("--count", "0"), ("--temperature", "-1"), ("--temperature", "nan"),
                            ("--top-k", "-1"), ("--top-p", "0"), ("--top-p", "1.5")):
            self.refused(flag, value, says=[f"fsdp: flag {flag}: found {value}, expected a number"])
        self.refused("--top-k", "-1", "--top-p", "0", says=["flag --top-k", "flag --top-p", "2 problems"])
        self.refused("--top-k", "many", says=["--top-k"])
        self.refused("--promt", "x", says=["has no option --promt, did you mean '--prompt'?"])
        self.refused("--prompt", b"\xff".decode("utf-8", "surrogateescape"), says=["flag --prompt: found byte 0"])

    def test_folders_that_are_no_runs(self):
        self.refused(run=self.folder / "nothing", says=["nothing: found no config.yaml, expected the folder of a run"])
        for step in self.run_folder.glob("step-*"):
            shutil.rmtree(step)
        self.refused(says=["found no checkpoint. Let the run save one (checkpoint.every_steps)"])

    def test_damaged_weights(self):
        for file in self.run_folder.glob("step-*/*.safetensors"):
            self.flip(file, -5)
        self.says(self.generate("--step", "4", expect=CHECKPOINT)[1], "damaged")


if __name__ == "__main__":
    main()
