"""The handle of a job: an actor beside the driver that its workers report to, and that answers for it."""

import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import control
from .node_run import first_cause

NAMESPACE = "fsdp_ray"


@ray.remote(num_cpus=0, max_concurrency=32, max_restarts=0)
class Job:
    """Its first four methods are for users: `ray.get(fsdp_ray.connect(name).metrics.remote())`."""

    def __init__(self, folder):
        self._folder = folder
        self._attempts = []  # of starts of the gang, each {"nodes": ..., "node_id": of rank 0, "ends": [...]}

    def status(self):
        """A dictionary with step, phase, ranks and checkpoint of the run, and the number of restarts by Ray."""
        return {"restarts": max(0, len(self._attempts) - 1)} | self._ask("status")

    def metrics(self):
        """A dictionary with the records of the last step, "metrics", and of the last evaluation, "eval"."""
        return self._ask("metrics")

    def save(self):
        """Saves after the step that the ranks are in. A dictionary with the step and the path of the checkpoint."""
        return self._ask("save")

    def stop(self):
        """The same, and then the run ends without an error: fit() returns the Result."""
        return self._ask("stop")

    # For the workers and the driver.

    def begin(self, node_id, nodes):
        """A gang has started. Returns the number of the attempt."""
        self._attempts.append({"node_id": node_id, "nodes": nodes, "ends": [], "time": time.time()})
        return len(self._attempts) - 1

    def node_ended(self, attempt, node, code, cause):
        self._attempts[attempt]["ends"].append({"node": node, "code": code, "cause": cause})

    def cause(self, attempt=-1):
        """The failure that made the others fail: {"node", "code", "cause"}. None: no node has reported one."""
        return first_cause(self._attempts[attempt]["ends"]) if self._attempts else None

    def trains(self):
        """True if a gang has started, and none of its nodes has ended, as far as they have said."""
        return bool(self._attempts) and not self._attempts[-1]["ends"]

    def _ask(self, do):
        if not self._attempts:
            raise control.NoRun("the job waits for resources")
        node = NodeAffinitySchedulingStrategy(self._attempts[-1]["node_id"], soft=False)
        return ray.get(ask_there.options(scheduling_strategy=node).remote(self._folder, do))


@ray.remote(num_cpus=0, max_retries=0)
def ask_there(folder, do):
    return control.ask(folder, do)


def start_job(name, folder):
    """The actor of a job that begins now, beside this driver. It ends with it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    try:
        return Job.options(name=name, namespace=NAMESPACE, scheduling_strategy=here).remote(folder)
    except ValueError:
        raise ValueError(f"a job named {name} runs on this cluster. Stop it (fsdp_ray.connect({name!r}).stop), or give this "
                         "one another name: RunConfig(name=...)") from None


def connect(name):
    """The handle of the running job with that name, from any program of the cluster. Throws ValueError if there is none."""
    return ray.get_actor(name, namespace=NAMESPACE)
