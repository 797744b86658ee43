"""What tests of `fsdp train` under other launchers share. Arguments of such a test: FSDP WORKER [LAUNCHER].

Commands are those of the table in docs/launching.md, run as they stand there, in a folder with a config.yaml.
"""

import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "app"))

from command import FSDP, CommandTest  # noqa: E402
from training import WORKER, environment, free_port, losses, records, wait_until  # noqa: E402, F401

CONFIG = """\
model_config_small: {type: gpt2, vocab_size: 257, context_length: 32, hidden_size: 32, num_layers: 2, num_heads: 2}
training_stages: {stage1: {}}
distributed: {strategy: fsdp}
model: {config: model_config_small}
training: {batch_size: 2, global_batch_size: 8, max_steps: 50, reproducible: true}
data: {format: synthetic, sequence_length: 32}
optimizer: {lr: 0.01}
checkpoint: {every_steps: 25}
eval: {every_steps: 0}
logging: {every_steps: 1}
"""
RUN = "runs/config/stage1"  # of config.yaml


@functools.lru_cache
def peers_folder():
    """Folder of torchrun. Installs the launchers; without one of them the test fails, with what is missing."""
    made = subprocess.run([ROOT / "scripts" / "setup-peers"], stdout=subprocess.PIPE, text=True, check=True)
    missing = [name for name in ("mpirun.openmpi", "mpiexec.hydra", "srun", "slurmctld", "slurmd", "munged")
               if subprocess.run(["which", name], stdout=subprocess.DEVNULL).returncode != 0]
    if missing:
        raise AssertionError(f"scripts/setup-peers could not install {', '.join(missing)}; `make setup-peers` says why")
    return Path(made.stdout.split()[-1]).parent


def command_of(launcher):
    """The command in the table of docs/launching.md, in the row whose name begins with `launcher`."""
    page = (ROOT / "docs" / "launching.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \| `([^`]+)` \|", page, re.MULTILINE)
    found = [command for name, command in rows if name.strip("[`").startswith(launcher)]
    if len(found) != 1:
        raise AssertionError(f"docs/launching.md has {len(found)} rows for {launcher}: {rows}")
    return found[0]


class LaunchedTest(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "config.yaml").write_text(CONFIG)
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "fsdp").symlink_to(FSDP)
        self.programs = [str(programs), str(peers_folder())]
        self.variables = {}

    def environment(self, **own):
        """For root, and for more ranks than processors. OMP_NUM_THREADS: four ranks on few cores."""
        path = ":".join([*self.programs, os.environ["PATH"]])
        mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
        return environment(PATH=path, FSDP_DEVICE="cpu", OMP_NUM_THREADS="1", **mpi, **self.variables, **own)

    def begin(self, command, **own):
        """Starts a shell command in the test's folder; its output is self.output(process)."""
        log = tempfile.NamedTemporaryFile("w", dir=self.folder, prefix="output-", delete=False)
        process = subprocess.Popen(["bash", "-c", "exec " + command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   cwd=self.folder, env=self.environment(**own))
        process.log = Path(log.name)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def output(self, process):
        return process.log.read_text(errors="replace")

    def end(self, process, expect=0, seconds=120):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds} s:\n{self.output(process)}") from None
        self.assertEqual(code, expect, self.output(process))
        return self.output(process)

    def shell(self, command, expect=0, **own):
        return self.end(self.begin(command, **own), expect)

    def same_weights(self, first, second):
        text = self.fsdp("ckpt", "diff", self.folder / first, self.folder / second)
        self.assertIn("equal", text)

    def start_slurm(self):
        """A cluster of two nodes, which ends with the test."""
        folder = self.folder / "slurm"
        script = f'. "{HERE}/slurm.sh"; slurm_start "{folder}"'
        started = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(subprocess.run, ["bash", "-c", f'. "{HERE}/slurm.sh"; slurm_stop "{folder}"'])
        self.assertEqual(started.returncode, 0, started.stdout)
        # The made-up names of the nodes do not resolve, so the meeting point is given.
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}


def timed(what, began):
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
