"""Follows the metrics.jsonl of a run, and makes of its records what Ray Train is told."""

import json
from pathlib import Path

NAMES = ("step", "epoch", "loss", "lr", "gradient_norm", "tokens", "tokens_per_second", "mfu", "seconds",
         "memory_bytes")
KEPT_STEPS = 1000  # a checkpoint that is saved in the background is told of some steps later


class MetricsFile:
    """The records that come after those which are there now."""

    def __init__(self, folder):
        self.path = Path(folder) / "metrics.jsonl"
        there = self.path.read_bytes() if self.path.exists() else b""
        self.position = there.rfind(b"\n") + 1  # the next start cuts a last line that is not whole
        self.by_step = {}  # of the newest steps: {step: metrics}
        self.evaluation = {}

    def news(self):
        """The reports to make since the last call, oldest first: (metrics, path of a checkpoint or None).

        There is one for each checkpoint, with the metrics of its step, and one for the newest step: a report takes Ray longer
        than a small step, so not every step has one.
        """
        reports, newest = [], None
        for record in self._records():
            kind, step = record.get("kind"), record.get("step")
            if kind == "step":
                self.by_step[step] = {name: number(record[name]) for name in NAMES if record.get(name) is not None}
                newest = step
            elif kind == "eval":
                self.evaluation = {"eval_loss": number(record["loss"]), "eval_step": step}
            elif kind == "checkpoint":
                reports.append((self._metrics(step), record["path"]))
                newest = None if newest == step else newest
        if newest is not None:
            reports.append((self._metrics(newest), None))
        for step in list(self.by_step)[:-KEPT_STEPS]:
            del self.by_step[step]
        return reports

    def _metrics(self, step):
        return {"step": step} | self.by_step.get(step, {}) | self.evaluation

    def _records(self):
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self.position += len(line)
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the rest of a record that a full disk has cut off
                if isinstance(record, dict):
                    yield record


def number(value):
    """JSON has no nan and inf, so metrics.jsonl writes them as text."""
    return float(value) if value in ("nan", "inf", "-inf") else value
