"""on_ray.py COMMAND: runs a shell command with a Ray cluster of a head and two nodes, which have two CPUs each."""

import os
import subprocess
import sys

from ray.cluster_utils import Cluster

MEMORY = 80_000_000
cluster = Cluster(initialize_head=True,
                  head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY})
for _ in range(2):
    cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
code = subprocess.call(["bash", "-c", sys.argv[1]], env=os.environ | {"RAY_ADDRESS": cluster.address})
cluster.shutdown()
sys.exit(code)
