"""A small job as a Ray task, on the CPUs and GPUs that the task was given."""

import os
import shutil

import ray

from .command import in_folder, node_environment, run_words
from .metrics import MetricsFile
from .node_run import NodeRun
from .trainer import RunFailed, program_words


@ray.remote(max_retries=0)
def train_task(program, folder, fsdp="fsdp", variables=None):
    """Trains with a rank per GPU of the task or, without GPUs, per CPU, and returns the metrics of its last step.

    `program` is as for FsdpTrainer, `folder` the run's folder, with what is there to go on from. Throws RunFailed.

      ray.get(train_task.options(num_cpus=2).remote("config.yaml", "/shared/runs/small"))
    """
    gpus, cpus = ray.get_gpu_ids(), int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))
    ranks = max(1, len(gpus) or cpus)
    folder = os.path.abspath(folder)
    command = shutil.which(fsdp)
    if command is None:
        raise RunFailed(f"found no {fsdp} in PATH of the node")
    words = run_words(command, in_folder(program_words(program, folder), folder), nodes=1, node=0, ranks=ranks, address="",
                      port=0, log_folder=os.path.join(folder, "logs"))
    variables = node_environment(os.environ, own=dict(variables or {}), gpus=gpus, cpus=cpus, ranks=ranks)
    metrics = MetricsFile(folder)
    run = NodeRun(words, variables, None)
    try:
        while not run.ended.wait(0.2):  # short waits, so that ray.cancel is seen
            pass
    finally:
        run.stop()
    if not run.succeeded():
        raise RunFailed(run.cause, run.code)
    reports = metrics.news()
    return (reports[-1][0] if reports else {}) | {"exit_code": run.code, "ranks": ranks}
