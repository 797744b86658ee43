"""What a worker needs, and what the cluster lacks of it."""

import re

import yaml

from .command import AS_A_NODE, WITHOUT_BYTES, as_rank_of, dry_run

# The program and LibTorch in memory, and activations of a small model: the plan of `--dry-run` does not count them.
BYTES_BESIDE_PLAN = 512 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}


def configured_ranks(fsdp, program, use_gpu=False):
    """distributed.devices of `fsdp train`: the ranks of a node. Throws ValueError with what it says is wrong."""
    done = dry_run(fsdp, program, AS_A_NODE | WITHOUT_BYTES)
    settings = yaml.safe_load(checked(done))
    if use_gpu and re.search("devices: auto is .* cores", done.stderr):
        raise ValueError("distributed.devices: auto counts the cores of this machine, which has no GPU, but each rank wants a "
                         "GPU of its node. Name the GPUs of a node: --ranks-per-node 8 (ranks_per_node=8)")
    stage, = settings["training_stages"].values()
    return stage["distributed"]["devices"]


def planned_bytes(fsdp, program, nodes, ranks):
    """The sum of bytes that `fsdp train --dry-run` plans for a rank; None if it plans none. Throws ValueError."""
    found = re.search(r"^ +sum +([\d.]+) (\w+)", checked(dry_run(fsdp, program, as_rank_of(nodes, ranks))), re.MULTILINE)
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def checked(done):
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return done.stdout


def worker_bundle(*, ranks, cpus_per_rank, use_gpu, rank_bytes, given):
    """The resources of the worker of a node. What `given` names is kept."""
    bundle = {"CPU": float(ranks * cpus_per_rank)}
    if use_gpu:
        bundle["GPU"] = float(ranks)  # the planned bytes are those of the GPU
    elif rank_bytes is not None:
        bundle["memory"] = float(ranks * (rank_bytes + BYTES_BESIDE_PLAN))
    return bundle | (given or {})


def shortage(bundle, workers, nodes):
    """Why `workers` such bundles, each on a node of its own, cannot be placed. "" if they can.

    nodes: {name: (total, free)}, two dictionaries of resources for each node.
    """
    if sum(all(free.get(key, 0) >= amount for key, amount in bundle.items()) for _, free in nodes.values()) >= workers:
        return ""
    lines = []
    if len(nodes) < workers:
        lines.append(f"nodes: {workers} wanted, the cluster has {len(nodes)}")
    for key, amount in bundle.items():
        fitting = sum(total.get(key, 0) >= amount for total, _ in nodes.values())
        free = sum(free.get(key, 0) >= amount for _, free in nodes.values())
        if free >= workers:
            continue
        why = "so many are on" if fitting < workers else "the rest is in use; so many are free on"
        each = ", ".join(f"{name}: {shown(key, free.get(key, 0))} free of {shown(key, total.get(key, 0))}"
                         for name, (total, free) in sorted(nodes.items()))
        lines.append(f"{key}: {shown(key, amount)} wanted on each of {workers} nodes; {why} "
                     f"{fitting if fitting < workers else free} ({each})")
    return "\n".join(lines) or "no node has all of it at once"


def shown(key, amount):
    return f"{amount / (1 << 30):.1f} GiB" if key == "memory" else f"{amount:g}"
