"""FsdpTrainer: a DataParallelTrainer of Ray Train of which each worker runs the ranks of one node."""

import dataclasses
import json
import os
import shutil
import threading
import time
from pathlib import Path

import ray
import ray.train
import yaml
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from .command import in_folder, is_fsdp_train
from .job import start_job
from .node_run import is_consequence
from .resources import configured_ranks, planned_bytes, shortage, worker_bundle
from .worker import POLL_SECONDS, NodeFailed, StopRanks, train_on_node

PENDING_SECONDS = 10.0  # after so long without a gang, the driver says what is missing


class RunFailed(ray.train.TrainingFailedError):
    """A run that failed for good: `exit_code` of the rank that failed first (None: a node died), `cause` what it says."""

    def __init__(self, cause, exit_code=None):
        super().__init__(cause)
        self.cause, self.exit_code = cause, exit_code

    def __reduce__(self):
        return RunFailed, (self.cause, self.exit_code)


class FsdpTrainer(DataParallelTrainer):
    """Trains on `scaling_config.num_workers` nodes.

    program         the path of a config file of `fsdp train`, such a configuration as a dictionary, or any program with its
                    arguments as a list: ["fsdp", "train", ...], ["my_program"]
    ranks_per_node  default: the GPUs in resources_per_worker, else distributed.devices of the configuration, else 1
    cpus_per_rank   CPUs of the bundle per rank
    fsdp            the command, as the nodes find it
    variables       environment variables for the ranks

    run_config.storage_path must be a folder that all nodes share. The run's folder is storage_path/name; checkpoints lie in it.
    """

    def __init__(self, program, *, ranks_per_node=None, cpus_per_rank=1, fsdp="fsdp", variables=None, scaling_config=None,
                 run_config=None, poll_seconds=POLL_SECONDS):
        scaling = scaling_config or ray.train.ScalingConfig()
        run = run_config or ray.train.RunConfig()
        check_run_config(run)
        folder = os.path.join(os.path.abspath(run.storage_path), run.name)
        words = in_folder(program_words(program, folder), folder)
        given = scaling.resources_per_worker or {}
        command = find_on_driver(fsdp, words)
        ranks = ranks_per_node or int(given.get("GPU", 0)) or (
            configured_ranks(command, words, scaling.use_gpu) if command else 1)
        # More nodes share the bytes between them: the fewest need the most.
        rank_bytes = planned_bytes(command, words, max(1, scaling.min_workers), ranks) if command else None
        elastic = scaling.min_workers < scaling.max_workers
        bundle = worker_bundle(ranks=ranks, cpus_per_rank=cpus_per_rank, use_gpu=scaling.use_gpu, rank_bytes=rank_bytes,
                               given=given)
        self.folder = folder
        self._plan = {"program": words, "folder": folder, "ranks_per_node": ranks, "fsdp": fsdp, "elastic": elastic,
                      "variables": dict(variables or {}), "working_folder": os.getcwd(), "poll_seconds": poll_seconds}
        super().__init__(
            train_on_node, train_loop_config=self._plan,
            scaling_config=dataclasses.replace(scaling, resources_per_worker=bundle, placement_strategy=spread(scaling)),
            run_config=dataclasses.replace(run, callbacks=[*(run.callbacks or []), StopRanks()]))

    def fit(self):
        """Returns Ray's Result: its checkpoint is a step-* folder of the run. Throws RunFailed."""
        if not ray.is_initialized():
            ray.init()
        # Relative paths of the program are those of the driver's folder.
        os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
        self._plan["job"] = job = start_job(self.run_config.name, self.folder)
        forget_deleted_checkpoints(self.folder)
        over = threading.Event()
        threading.Thread(target=self._say_what_is_missing, args=(job, over), daemon=True).start()
        try:
            return super().fit()
        except ray.train.TrainingFailedError as error:
            raise self._failure(error, ray.get(job.cause.remote())) from error
        finally:
            over.set()
            ray.kill(job)
            del self._plan["job"]
            forget_deleted_checkpoints(self.folder)

    def _failure(self, error, cause):
        """The cause that the nodes name; if they name only consequences of it, a node that died; else Ray's words."""
        if cause and not is_consequence(cause):
            return RunFailed(cause["cause"], cause["code"])
        failures = getattr(error, "worker_failures", {})
        for worker, failure in sorted(failures.items()):
            if isinstance(failure, ray.exceptions.RayActorError):
                return RunFailed(f"the Ray worker of node {worker} died with its ranks: {failure}")
        if cause:
            return RunFailed(cause["cause"], cause["code"])
        for failure in failures.values():
            if isinstance(failure, NodeFailed):  # before its ranks began
                return RunFailed(str(failure))
        missing = self.missing()
        return RunFailed(f"{error}\n{missing}" if missing else str(error))

    def missing(self):
        """Which resources the cluster lacks now for the fewest workers of this run. "" if it lacks none."""
        return shortage(self.scaling_config.resources_per_worker, self.scaling_config.min_workers, cluster_nodes())

    def _say_what_is_missing(self, job, over):
        seen, since, said = "", 0.0, ""
        while not over.wait(1.0):
            try:
                missing = "" if ray.get(job.trains.remote()) else self.missing()
            except ray.exceptions.RayError:
                return  # the run has ended
            if missing != seen:
                seen, since = missing, time.monotonic()
            # A gang that starts again is no shortage: it holds the resources itself for a while.
            if missing and missing != said and time.monotonic() - since > PENDING_SECONDS:
                print(f"fsdp_ray: {self.run_config.name} waits for resources:\n{missing}", flush=True)
                said = missing


def forget_deleted_checkpoints(folder):
    """Takes checkpoints that the ranks have deleted (keep_last) out of Ray's list: Ray refuses a list with missing ones."""
    path = Path(folder) / "checkpoint_manager_snapshot.json"
    if not path.exists():
        return
    state = json.loads(path.read_text())

    def is_there(result):
        return result is not None and (Path(folder) / result["checkpoint_dir_name"]).is_dir()

    kept = [(one, index) for one, index in zip(state["checkpoint_results"], state["checkpoint_report_indices"], strict=True)
            if is_there(one)]
    if len(kept) == len(state["checkpoint_results"]):
        return
    state["checkpoint_results"] = [one for one, _ in kept]
    state["checkpoint_report_indices"] = [index for _, index in kept]
    if not is_there(state["latest_checkpoint_result"]):
        state["latest_checkpoint_result"] = kept[-1][0] if kept else None
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(state))
    partial.replace(path)


def check_run_config(run):
    if "/runtime_resources/" in os.path.abspath(run.storage_path):
        raise ValueError(f"the storage folder {os.path.abspath(run.storage_path)} is in this job's copy of its files, which Ray "
                         "deletes. Expected a folder that all nodes share: --storage /shared/runs (RunConfig(storage_path=...))")
    if "://" in str(run.storage_path) or run.storage_filesystem is not None:
        raise ValueError(f"RunConfig(storage_path={str(run.storage_path)!r}): expected a folder that all nodes share, such as "
                         "NFS: the ranks write their checkpoints there")
    if run.checkpoint_config and run.checkpoint_config.num_to_keep is not None:
        raise ValueError("RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=...)): the ranks delete old checkpoints "
                         "themselves. Set checkpoint.keep_last of the configuration, and leave num_to_keep out")


def spread(scaling):
    """One worker per node. Ray counts elastic workers by resources alone, so then a node may have two."""
    if scaling.placement_strategy != "PACK":  # the default of ScalingConfig
        return scaling.placement_strategy
    return "STRICT_SPREAD" if scaling.min_workers == scaling.max_workers else "SPREAD"


def program_words(program, folder):
    """`program` as a list of words. A configuration is copied into the run's folder, where all nodes find it."""
    if not isinstance(program, (str, os.PathLike, dict)):
        return [str(word) for word in program]
    is_file = not isinstance(program, dict)
    copy = Path(folder) / "submitted" / (Path(program).name if is_file else "config.yaml")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(Path(program).read_text() if is_file else yaml.safe_dump(program, sort_keys=False))
    return ["fsdp", "train", "--config", str(copy)]


def find_on_driver(fsdp, words):
    """The command that plans `fsdp train`. None: another program, or the driver has no fsdp, so no memory is reserved."""
    if not is_fsdp_train(words):
        return None
    found = shutil.which(fsdp)
    if found is None:
        print(f"fsdp_ray: no {fsdp} here: the workers reserve no memory, and a node has a rank unless ranks_per_node says more")
    return found


def cluster_nodes():
    """{address: (total, free)} of the nodes that are alive."""
    from ray._private.state import available_resources_per_node  # Ray has no public name for it

    free = available_resources_per_node()
    return {f"{node['NodeManagerAddress']}/{node['NodeID'][:6]}": (node["Resources"], free.get(node["NodeID"], {}))
            for node in ray.nodes() if node["Alive"]}
