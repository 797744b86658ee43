"""python -m fsdp_ray --nodes 2 --ranks-per-node 4 -- fsdp train ...: trains on a Ray cluster, also from `ray job submit`."""

import argparse
import os
import sys

import ray
import ray.train

from .trainer import FsdpTrainer, RunFailed


def number_of_nodes(text):
    """"2", or "1:4" for from 1 to 4 nodes."""
    least, _, most = text.partition(":")
    return (int(least), int(most)) if most else int(least)


def parse(words):
    parser = argparse.ArgumentParser(prog="python -m fsdp_ray", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--nodes", type=number_of_nodes, default=1, metavar="N|MIN:MAX", help="how many nodes; default: 1")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="default: distributed.devices of the configuration")
    parser.add_argument("--gpus", action="store_true", help="a GPU for each rank")
    parser.add_argument("--cpus-per-rank", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--storage", default="runs", metavar="DIR", help="a folder that all nodes share; default: runs")
    parser.add_argument("--name", help="the run's folder is DIR/NAME; default: that of --run, else a new name")
    parser.add_argument("--max-failures", type=int, default=0, metavar="N", help="restarts after a failure; default: 0")
    parser.add_argument("--fsdp", default="fsdp", metavar="PATH", help="the fsdp command of the nodes")
    parser.add_argument("--address", help="of the cluster; default: RAY_ADDRESS, else the one of this machine")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")
    given = parser.parse_args(words)
    given.program = given.program[1:] if given.program[:1] == ["--"] else given.program
    if not given.program:
        parser.error("no program: expected it after --, as in -- fsdp train --config config.yaml")
    return given


def take_run_folder(program, storage, name):
    """`--run DIR` of the program names the folder here: (program without it, storage, name)."""
    if "--run" not in program[:-1]:
        return program, os.path.abspath(storage), name
    at = program.index("--run")
    folder = os.path.abspath(program[at + 1])
    return program[:at] + program[at + 2:], os.path.dirname(folder), os.path.basename(folder)


def main(words):
    given = parse(words)
    program, storage, name = take_run_folder(given.program, given.storage, given.name)
    ray.init(address=given.address or os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=True)
    try:
        trainer = FsdpTrainer(
            program, ranks_per_node=given.ranks_per_node, cpus_per_rank=given.cpus_per_rank, fsdp=given.fsdp,
            scaling_config=ray.train.ScalingConfig(num_workers=given.nodes, use_gpu=given.gpus),
            run_config=ray.train.RunConfig(storage_path=storage, name=name,
                                           failure_config=ray.train.FailureConfig(max_failures=given.max_failures)))
        result = trainer.fit()
    except ValueError as error:
        print(f"fsdp_ray: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"fsdp_ray: {error.cause}", file=sys.stderr)
        return error.exit_code or 1
    print(f"fsdp_ray: {trainer.folder}: {result.metrics or 'no metrics'}")
    return result.return_value["exit_code"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
