"""Command lines: what each node starts, and with which variables."""

import os
import subprocess
from pathlib import Path

# The variables of ranks. A program that looks at them must see those that `fsdp run` sets, and no others.
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
            "TORCHELASTIC_ERROR_FILE")


def is_fsdp_train(program):
    return len(program) > 1 and Path(program[0]).name == "fsdp" and program[1] == "train"


def in_folder(program, folder):
    """`program`, with the options by which `fsdp train` keeps its run in `folder` and goes on with what is there."""
    if not is_fsdp_train(program):
        return list(program)
    if any(word == "--run" or word.startswith("--run=") for word in program):
        raise ValueError("the program has --run, but Ray's RunConfig names the run's folder: it is storage_path/name. "
                         "Leave --run out, or use the same folder in RunConfig")
    resume = [] if any(word == "--resume" or word.startswith("--resume=") for word in program) else ["--resume"]
    return [*program, "--run", str(folder), *resume]


def run_words(fsdp, program, *, nodes, node, ranks, address, port, log_folder):
    """The `fsdp run` of one node. On one node the ranks choose the port themselves."""
    place = ["--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", address, "--master-port", str(port)]
    return [fsdp, "run", *(place if nodes > 1 else []), "--nproc-per-node", str(ranks), "--log-dir", str(log_folder),
            "--", *program]


def node_environment(inherited, *, own, gpus, cpus, ranks):
    """Variables for the ranks of a node, which use the GPUs and the CPUs that Ray has assigned to its worker."""
    variables = {name: value for name, value in inherited.items() if name not in LAUNCHER}
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    # Ray sets OMP_NUM_THREADS to the CPUs of the worker, but they are for all of its ranks.
    variables["OMP_NUM_THREADS"] = str(max(1, int(cpus) // ranks))
    return variables | own


def dry_run(fsdp, program, variables):
    """The finished process of `fsdp train --dry-run`, with these variables in place of a launcher's."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    return subprocess.run([fsdp, *program[1:], "--dry-run"], env=inherited | variables, capture_output=True, text=True,
                          check=False)


def as_rank_of(nodes, ranks):
    """The variables of rank 0 of so many."""
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(nodes * ranks), "LOCAL_WORLD_SIZE": str(ranks)}


AS_A_NODE = {"NODE_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
WITHOUT_BYTES = {"FSDP_WORKER": "/none"}  # the configuration is checked, without the worker, which plans memory


def most_nodes_that_fit(fsdp, program, nodes, ranks):
    """The largest number of `nodes` whose ranks share the global batch of the run evenly; `nodes` if none does."""
    if not is_fsdp_train(program):
        return nodes
    fits = (n for n in range(nodes, 0, -1)
            if dry_run(fsdp, program, as_rank_of(n, ranks) | WITHOUT_BYTES).returncode == 0)
    return next(fits, nodes)  # with none the ranks' own message says what is wrong
