"""fsdp.cpp on Ray: one worker of Ray Train per node, and our ranks below it. See docs/clusters.md."""

from .job import connect
from .task import train_task
from .trainer import FsdpTrainer, RunFailed

__all__ = ["FsdpTrainer", "RunFailed", "connect", "train_task"]
