"""cookbook.py [NAME...]: every PyTorch program of examples/cookbook/peers runs on two CPU ranks under torchrun, and prints
what it should. Without a GPU, accelerate replicates the model instead of sharding it: its programs are run, no more."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel

PROGRAMS = Path(__file__).parents[2] / "examples" / "cookbook" / "peers"
SAYS = {
    "01_shard": r"step 200  loss 0\.0",
    "02_mixed_precision": r"step 200  loss 0\.0",
    "03_accumulate": r"microbatch 400  loss 0\.[01]",
    "04_clip": r"step 200  gradient norm 0\.",
    "05_save_and_resume": r"starting at step 0\n(.*\n)*step 400  loss 0\.00",
    "06_evaluate": r"step 200  accuracy (1\.0|0\.9)",
    "07_generate": r"0, +1, +2, +3, +4, +5, +6, +7, +8",
    "08_lora": r"saved lora\.run",
    "09_load_hf": r"step 20  loss",
    "10_profile": r"gloo:all_gather.* 10 times",
    "10_profile_accelerate": r"gloo:all_reduce.* [2-5] times",
    "11_hang": r"Ranks 1 failed to pass monitoredBarrier",
    "12_nodes": r"2 ranks on \S+\n",
}


def run(program, folder, *arguments):
    """What it printed. PyTorch's ranks may abort when they have done their work, so exit codes say little."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true",
                                "CUDA_VISIBLE_DEVICES": ""}
    command = [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node", "2", program, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=300)
    return done.stdout


def check(program):
    name = program.stem.removesuffix("_accelerate")
    says = SAYS.get(program.stem, SAYS[name])
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        if name == "09_load_hf":
            config = GPT2Config(vocab_size=64, n_positions=16, n_embd=24, n_layer=2, n_head=4)
            GPT2LMHeadModel(config).save_pretrained(f"{folder}/gpt2")
            arguments = ["gpt2"]
        said = run(program, folder, *arguments)
        found = re.search(says, said)
        if found and name == "05_save_and_resume":
            said = run(program, folder)
            found = re.search("starting at step 400", said)
    print(f"{program.stem}: {found[0].splitlines()[-1]}" if found else f"{program.stem} did not say {says}:\n{said}",
          flush=True)
    return found is not None


if __name__ == "__main__":
    programs = [path for path in sorted(PROGRAMS.glob("*.py")) if not sys.argv[1:] or path.stem in sys.argv[1:]]
    results = [check(program) for program in programs]
    sys.exit(0 if results and all(results) else 1)
