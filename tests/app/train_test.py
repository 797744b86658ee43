"""train_test.py FSDP WORKER: how `fsdp train` starts, resumes and goes on with another stage; real ranks, tiny models."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from command import FSDP, main
from training import OK, USAGE, TrainTest, environment, free_port, losses, records

LINES = {1: ["--fsdp-config", "single_node_fsdp", "--devices", "4"],
         2: ["--fsdp-config", "multi_node_fsdp", "--num-nodes", "2", "--devices", "8"],
         3: ["--fsdp-config", "large_scale_fsdp", "--num-nodes", "4", "--devices", "8"],
         4: ["--stage", "stage2", "--fsdp-config", "multi_node_fsdp", "--devices", "8"],
         5: ["--mode", "production", "--stage", "stage1", "--model-config", "model_config_1.7B", "--devices", "8",
             "--precision", "bf16-mixed"]}
TINY = ["--model-config", "model_config_tiny_gpt2", "--set", "training.max_steps=2", "--set", "data.sequence_length=16",
        "--set", "training.batch_size=1", "--set", "schedule.warmup_steps=1", "--set", "eval.every_steps=0"]


class CommandLines(TrainTest):
    """The command lines that users know, with the configuration built in."""

    def plan(self, line, **variables):
        done = subprocess.run([FSDP, "train", *LINES[line], "--dry-run"], capture_output=True, text=True, timeout=60,
                              cwd=self.folder, env=environment(**variables))
        self.assertEqual(done.returncode, OK, done.stderr)
        self.assertEqual(list(self.folder.iterdir()), [self.config], "a dry run writes nothing")
        return done.stdout

    def test_all_five_pass_as_dry_runs(self):
        node = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        self.says(self.plan(1), "devices: 4 ", "num_nodes: 1 ", "activation_checkpointing: true")
        self.says(self.plan(2, **node), "devices: 8 ", "num_nodes: 2 ", "cpu_offload: true")
        self.says(self.plan(3, **node), "num_nodes: 4 ", "forward_prefetch: true", "32 ranks")
        self.says(self.plan(4, **node), "stage2:", "num_nodes: 4 ")
        self.says(self.plan(5), "model_config_1.7B", "bf16-mixed", "8 ranks", "1,711,376,384 parameters")

    def test_lines_1_and_5_train(self):
        self.typed([FSDP, "train", *LINES[1][:2], "--devices", "2", *TINY])
        run = self.folder / "runs" / "example" / "stage1"
        self.assertEqual(records(run, "start")[0]["ranks"], 2)
        self.assertEqual(sorted(losses(run)), [1, 2])
        words = LINES[5][:4] + ["--devices", "1"] + LINES[5][8:]
        self.typed([FSDP, "train", *words, *TINY, "--run", "other"])
        self.says(json.dumps(records(self.folder / "other", "start")), "bf16-mixed", '"ranks": 1')

    def test_line_2_as_two_starts_on_one_machine(self):
        port = free_port()
        words = [FSDP, "train", *LINES[2][:4], "--devices", "1", *TINY, "--run", "both"]
        nodes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                  env=environment(NODE_RANK=str(node), MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
                 for node in (0, 1)]
        for node in nodes:
            out, errors = node.communicate(timeout=100)
            self.assertEqual([node.returncode, out], [OK, ""], errors)
        self.assertEqual(records(self.folder / "both", "start")[0]["ranks"], 2)
        self.assertEqual(len(records(self.folder / "both", "end")), 1)

    def test_several_nodes_without_node_rank(self):
        text = self.typed([FSDP, "train", *LINES[2]], USAGE)
        self.says(text, "2 nodes, but NODE_RANK is not set", "\n  node 0:  MASTER_ADDR=", " NODE_RANK=0 fsdp train "
                  "--fsdp-config multi_node_fsdp --num-nodes 2 --devices 8\n", " NODE_RANK=1 fsdp train --fsdp-config")

    def test_rank_alone_can_be_read_in_two_ways(self):
        text = self.typed([FSDP, "train", *LINES[2]], USAGE, env=environment(RANK="1"))
        self.says(text, "can be read in two ways", "started this process as rank 1 of all", "set NODE_RANK=1")

    def test_devices_without_gpus_are_cpu_ranks(self):
        if Path("/dev/nvidia0").exists():
            return
        done = subprocess.run([FSDP, "train", *LINES[1], "--dry-run"], capture_output=True, text=True, env=environment(),
                              cwd=self.folder, timeout=60)
        self.says(done.stderr, "distributed.devices: this machine has no GPU, so they are 4 CPU ranks")


class Start(TrainTest):
    def test_says_what_it_will_do_and_keeps_a_folder(self):
        text = self.train()
        self.says(text, "model   small: ", "ranks   2 CPU ranks", "batch   4 sequences a step",
                  f"run     {self.run_folder}", "all steps done after step 4 in 0:0",
                  f"; saved {self.run_folder}/step-00000004")
        names = {path.name for path in self.run_folder.iterdir()}
        self.assertLessEqual({"config.yaml", "metrics.jsonl", "logs", "latest", "step-00000004"}, names)
        self.assertEqual(sorted(losses(self.run_folder)), [1, 2, 3, 4])
        self.assertEqual(sorted(path.name for path in (self.run_folder / "logs").iterdir()),
                         ["rank-0.log", "rank-1.log"])

    def test_the_run_can_be_started_from_its_own_config(self):
        self.train()
        self.typed([FSDP, "train", "--config", self.run_folder / "config.yaml", "--run", "again"])
        self.assertEqual(losses(self.folder / "again"), losses(self.run_folder))

    def test_smoke_keeps_nothing(self):
        text = self.typed([FSDP, "train", "--config", self.config, "--mode", "smoke"])
        self.says(text, "all steps done after step 3", "run     nothing is kept")
        self.assertEqual(list(self.folder.iterdir()), [self.config])
        self.says(self.train("--mode", "smoke", "--resume", "auto", expect=USAGE), "mode smoke keeps nothing")

    def test_inside_fsdp_run_it_is_one_rank(self):
        words = [FSDP, "run", "--nproc-per-node", "3"]
        text = self.typed([*words, *self.words()])
        self.says(text, "distributed.devices: 3 (the launcher) instead of 2", "ranks   3 CPU ranks")
        self.assertEqual(text.count("distributed.devices"), 1, "one rank speaks")
        self.assertEqual(records(self.run_folder, "start")[0]["ranks"], 3)

    def test_inside_srun_and_mpirun_it_is_one_rank(self):
        for variables in ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                           "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
                          {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1",
                           "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "here"}):
            text = self.typed([FSDP, "train", "--config", self.config, "--mode", "smoke"], env=environment(**variables))
            self.says(text, "distributed.devices: 1 (the launcher)", "ranks   1 CPU rank (")

    def test_missing_worker(self):
        lonely = self.folder / "bin" / "fsdp"
        lonely.parent.mkdir()
        shutil.copy(FSDP, lonely)
        variables = environment()
        del variables["FSDP_WORKER"]
        self.says(self.typed([lonely, *self.words()[1:]], USAGE, env=variables), "found no fsdp-worker", "FSDP_WORKER")
        variables["FSDP_WORKER"] = str(self.folder / "nothing")
        self.says(self.train(expect=USAGE, env=variables), "fsdp: FSDP_WORKER: found ", "expected the path of fsdp-worker")

    def test_missing_wandb(self):
        (self.folder / "bin").mkdir()
        text = self.train("--set", "wandb.use_wandb=true", expect=USAGE, env=environment(PATH=str(self.folder / "bin")))
        self.says(text, "wandb.use_wandb", "python3")
        self.assertFalse(self.run_folder.exists())

    def test_near_names(self):
        self.says(self.train("--modle-config", "x", expect=USAGE),
                  "fsdp: `fsdp train` has no option --modle-config, did you mean '--model-config'?\n")
        self.says(self.typed([FSDP, "trian"], USAGE), "'trian' is not a command of `fsdp`. Did you mean 'train'?")
        self.says(self.train("--set", "optimizr.lr=1", expect=USAGE), "did you mean 'optimizer.lr'?")
        self.says(self.train("run7", expect=USAGE), "fsdp: `fsdp train` has no argument 'run7'.\n")
        self.says(self.train("--resume", "run7", expect=USAGE), "--run names the folder")
        self.says(self.typed([FSDP, "train", "--run", ""], USAGE), "flag --run: found an empty text, expected a folder")

    def test_bare_surroundings(self):
        """No HOME, a dumb terminal, stdin and stdout closed."""
        variables = {name: value for name, value in environment(TERM="dumb").items() if name != "HOME"}
        text = self.train(env=variables, preexec_fn=lambda: os.closerange(0, 2))
        self.assertNotIn("\033", text)

    def test_help_is_short_and_true(self):
        text = self.fsdp("--help")
        for word in ("2 usage", "3 checkpoint", "4 ranks", "5 a peer", "6 not finite", "7 storage", "70 a defect",
                     "75 saved and asked to end"):
            self.assertIn(word, text)
        self.assertLess(text.index("\n  train "), text.index("\n  ckpt "))
        self.assertLess(max(map(len, text.splitlines())), 121)


class Resume(TrainTest):
    def test_a_run_that_exists_is_refused(self):
        self.train()
        before = (self.run_folder / "metrics.jsonl").read_bytes()
        self.says(self.train(expect=USAGE), "holds a run already. --resume auto goes on with it")
        self.assertEqual((self.run_folder / "metrics.jsonl").read_bytes(), before)

    def test_a_run_that_another_process_trains_is_refused(self):
        process = self.start_and_wait("--set", "training.max_steps=1000000")
        self.says(self.train("--resume", "auto", expect=USAGE), "another `fsdp train` is running in", "--run DIR")
        self.assertIsNone(process.poll())

    def test_a_lock_of_a_machine_that_is_gone_is_waited_for(self):
        self.train()
        alone = ["unshare", "-pf", "--mount-proc"]  # sees no process that has a lock
        if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
            self.skipTest("needs a kernel and a user that may make namespaces")
        with open(self.run_folder / ".train-lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            process = subprocess.Popen([*alone, *map(str, self.words("--resume", "--set", "training.max_steps=6"))], env=environment(),
                                       cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            time.sleep(4)
            self.assertIsNone(process.poll())
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, OK, err)
        self.assertIn("is locked by a process of another machine, or of one that is gone", err)

    def test_goes_on_as_if_nothing_had_been(self):
        self.train("--set", "training.max_steps=8")
        whole = losses(self.run_folder)
        self.run_folder = self.folder / "parts"
        self.train("--resume")  # nothing to resume: begins
        text = self.train("--resume", "auto", "--set", "training.max_steps=8")
        self.says(text, "resumes ", "step-00000004, which 2 ranks saved")
        self.assertEqual(losses(self.run_folder), whole)
        self.assertEqual([one["step"] for one in records(self.run_folder, "resume")], [4])

    def test_another_number_of_ranks_keeps_the_global_batch(self):
        steps = ("--set", "training.reproducible=true", "--set", "training.max_steps=8")
        self.train(*steps)
        whole = losses(self.run_folder)
        self.run_folder = self.folder / "parts"
        self.train(*steps[:2])
        text = self.train("--resume", "auto", *steps, "--devices", "1")
        self.says(text, "training.global_batch_size: 4, as the run in", "gradient_accumulation_steps is 2",
                  "batch   4 sequences a step = 2 x 2 microbatches x 1 ranks")
        self.assertEqual(losses(self.run_folder), whole, "the same bits on any number of ranks")

    def test_a_number_of_ranks_that_does_not_fit_is_refused(self):
        self.train()
        text = self.train("--resume", "auto", "--devices", "3", expect=USAGE)
        self.says(text, "found a global_batch_size of 4, expected a multiple of 6", "These would fit: ", "1 or 2 ranks")
        text = self.train("--resume", "auto", "--set", "training.global_batch_size=8", expect=USAGE)
        self.says(text, "found 8, expected 4, as the run in")

    def test_all_steps_done(self):
        self.train()
        self.says(self.train("--resume", "auto"), "all steps done after step 4")
        self.assertEqual(sorted(losses(self.run_folder)), [1, 2, 3, 4])


class Stages(TrainTest):
    def words(self, *arguments):
        return [FSDP, "train", "--config", self.config, *map(str, arguments)]

    def test_stage2_starts_from_stage1(self):
        self.says(self.train("--stage", "stage2", "--run", "alone", expect=USAGE), "there is no checkpoint in stage1 or",
                  "or to none for new weights")
        self.train("--stage", "stage2", "--run", "alone", "--set", "training.init_from=none")
        self.train("--set", "training.max_steps=60")
        text = self.train("--stage", "stage2")
        stage1 = Path("runs/small/stage1")
        self.says(text, f"training.init_from: stage2 starts from the weights of {stage1}", "start weights from ")
        first = losses(self.folder / "runs" / "small" / "stage2")[1]
        self.assertLess(first, losses(self.folder / "alone")[1] - 0.05)
        self.typed(self.words("--stage", "stage2", "--resume", "auto"), OK)

    def test_init_from_takes_weights_only(self):
        self.train("--run", "base")
        text = self.train("--run", "other", "--set", "training.init_from=base", "--set", "training.max_steps=1")
        self.says(text, "start weights from base")
        other = self.folder / "other"
        self.assertEqual(sorted(losses(other)), [1])
        self.assertLess(losses(other)[1], losses(self.folder / "base")[1] - 0.01)
        self.says(self.train("--run", "third", "--set", "training.init_from=nowhere", expect=USAGE), "nowhere")


if __name__ == "__main__":
    main()
