"""The training loop of one Ray Train worker: it starts the ranks of its node, and reports what rank 0 writes."""

import os
import shutil
import socket
import time

import ray
import ray.train
from ray.train import collective
from ray.train.v2._internal.execution.callback import WorkerCallback

from . import control
from .command import most_nodes_that_fit, node_environment, run_words
from .metrics import MetricsFile
from .node_run import NodeRun, is_consequence

POLL_SECONDS = 1.0
CAUSE_SECONDS = 5.0  # how long a node waits for the others to name the cause of a failure

running = None  # the NodeRun of this process


class NodeFailed(Exception):
    """The ranks of a node failed; the message is the cause."""


class StopRanks(WorkerCallback):
    """Ray ends the workers to cancel the job or to resize it: the ranks save before that, if they can within seconds."""

    def before_worker_shutdown(self):
        if running is not None:
            running.stop()


def train_on_node(plan):
    """Every worker runs this. Note [Steps that all workers report] is below."""
    context = ray.train.get_context()
    node, workers = context.get_world_rank(), context.get_world_size()
    meeting = collective.broadcast_from_rank_zero(open_meeting(plan, workers) if node == 0 else None)
    metrics = MetricsFile(plan["folder"]) if node == 0 else None
    ranks_here = start_ranks(plan, meeting, node) if node < meeting["nodes"] else None
    while True:
        if node == 0:
            ranks_here.ended.wait(plan["poll_seconds"])
        if ranks_here is not None and ranks_here.ended.is_set() and not ranks_here.succeeded():
            raise_cause(plan["job"], meeting["attempt"], ranks_here)
        done = node == 0 and ranks_here.ended.is_set()  # before the file is read: then it is read to its end
        reports = metrics.news() if node == 0 else []
        told = collective.broadcast_from_rank_zero({"reports": len(reports), "done": done} if node == 0 else None)
        for i in range(told["reports"]):
            report(*reports[i] if node == 0 else ({}, None))
        if told["done"]:
            break
        save_before_preemption(plan["folder"], meeting, node)
    return finish(plan["job"], meeting, ranks_here)


# Note [Steps that all workers report]
# ray.train.report and broadcast_from_rank_zero are barriers: they return when every worker has called them as often. So
# worker 0 alone follows metrics.jsonl, and tells the others how many reports come. All of them go round the loop together; a
# worker of which the ranks have ended goes on until the ranks of worker 0 have. A worker that fails leaves the loop, and the
# others wait in a barrier until Ray ends them. Their ranks may then fail on their own, or hold the cause of it all. That is why
# a thread of each NodeRun, not the loop, tells the job how the ranks ended.


def open_meeting(plan, workers):
    """On worker 0: where the ranks of all nodes meet, and on how many nodes there are ranks."""
    nodes = workers
    if plan["elastic"]:
        nodes = most_nodes_that_fit(find_fsdp(plan), plan["program"], workers, plan["ranks_per_node"])
        if nodes < workers:
            print(f"fsdp_ray: {workers} nodes are there, but the global batch fits {nodes}: the others are idle")
    attempt = ray.get(plan["job"].begin.remote(ray.get_runtime_context().get_node_id(), nodes))
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return {"attempt": attempt, "nodes": nodes, "address": ray.util.get_node_ip_address(), "port": port}


def find_fsdp(plan):
    found = shutil.which(plan["fsdp"])
    if found is None:
        raise NodeFailed(f"node {socket.gethostname()} has no {plan['fsdp']} in its PATH. Install fsdp.cpp there, or name its "
                         "place: FsdpTrainer(fsdp=...), or --fsdp")
    return found


def start_ranks(plan, meeting, node):
    global running
    assigned = ray.get_runtime_context().get_assigned_resources()
    ranks = plan["ranks_per_node"]
    words = run_words(find_fsdp(plan), plan["program"], nodes=meeting["nodes"], node=node, ranks=ranks,
                      address=meeting["address"], port=meeting["port"], log_folder=os.path.join(plan["folder"], "logs"))
    variables = node_environment(os.environ, own=plan["variables"], gpus=ray.get_gpu_ids(), cpus=assigned.get("CPU", 1),
                                 ranks=ranks)
    job, attempt = plan["job"], meeting["attempt"]
    folder = plan["working_folder"] if os.path.isdir(plan["working_folder"]) else None
    running = NodeRun(words, variables, folder, lambda run: job.node_ended.remote(attempt, node, run.code, run.cause))
    return running


def report(metrics, checkpoint):
    storage = ray.train.get_context().get_storage()
    kept = ray.train.Checkpoint(checkpoint, filesystem=storage.storage_filesystem) if checkpoint else None
    ray.train.report(metrics, checkpoint=kept, checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD)


def save_before_preemption(folder, meeting, node):
    """Saves once when Ray learns that a node will be taken away. A barrier, as all workers call it."""
    if ray.train.get_preemption_info() is None or meeting.get("saved"):
        return
    meeting["saved"] = True
    if node == 0:
        try:
            control.ask(folder, "save")
        except (control.NoRun, RuntimeError) as error:
            print(f"fsdp_ray: a node is about to be taken away, but there is no save: {error}")


def raise_cause(job, attempt, failed):
    """Raises the cause. If these ranks failed because of others, the node of those gets time to say why."""
    own = {"code": failed.code, "cause": failed.cause}
    until = time.monotonic() + (CAUSE_SECONDS if is_consequence(own) else 0)
    while True:
        cause = ray.get(job.cause.remote(attempt)) or own
        if not is_consequence(cause) or time.monotonic() >= until:
            raise NodeFailed(cause["cause"])
        time.sleep(0.1)


def finish(job, meeting, ranks_here):
    """The ranks of worker 0 have ended well; so must those of this node. Returns how the run ended."""
    if ranks_here is None:
        return None
    if not ranks_here.ended.wait(60):
        raise NodeFailed(f"the ranks of {socket.gethostname()} still run 60 s after those of the first node have ended")
    if not ranks_here.succeeded():
        raise_cause(job, meeting["attempt"], ranks_here)
    return {"exit_code": ranks_here.code, "nodes": meeting["nodes"]}
