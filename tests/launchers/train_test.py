"""train_test.py FSDP WORKER LAUNCHER: `fsdp train` under a real launcher, by the command of docs/launching.md, gives the
weights of a run without a launcher, bit for bit: 50 steps on 4 ranks in reproducible mode."""

import shlex
import sys
import time
import unittest

from launched import HERE, ROOT, LaunchedTest, command_of, free_port, records, timed

LAUNCHER = sys.argv[3]
ROWS = {"fsdp_run": "fsdp run", "torchrun": "torchrun", "openmpi": "OpenMPI", "mpich": "MPICH", "slurm": "Slurm",
        "kubernetes": "Kubernetes", "ray": "Ray"}


class Train(LaunchedTest):
    def test_same_weights(self):
        self.shell(command_of("none"))
        (self.folder / "runs").rename(self.folder / "alone")
        began = time.monotonic()
        if LAUNCHER == "slurm":
            self.start_slurm()
        command = command_of(ROWS[LAUNCHER])
        if LAUNCHER == "kubernetes":
            self.in_pods(command)
        elif LAUNCHER == "ray":  # its own HOME: Ray keeps tokens and caches there
            self.shell(f"python {HERE / 'on_ray.py'} {shlex.quote(command)}", HOME=str(self.folder),
                       PYTHONPATH=str(ROOT / "ray"), RAY_USAGE_STATS_ENABLED="0")
        else:
            self.shell(command)
        timed(f"{ROWS[LAUNCHER]}: 50 steps on 4 ranks", began)
        [run] = [path.parent for path in (self.folder / "runs").rglob("metrics.jsonl")]
        for folder in (self.folder / "alone/config/stage1", run):
            self.assertEqual(records(folder, "start")[0]["ranks"], 4)
            self.assertEqual(records(folder, "end")[0]["step"], 50)
        self.same_weights("alone/config/stage1", run)

    def in_pods(self, command):
        """Four pods of one container, with the variables of the PyTorchJob operator: one master, three workers."""
        port, pods = free_port(), []
        for rank in range(4):
            variables = {"PYTHONUNBUFFERED": "1", "WORLD_SIZE": "4", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": port, "PET_NNODES": "4", "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1",
                         "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
            pods.append(self.begin(command, **variables))
        for pod in pods:
            self.end(pod)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
