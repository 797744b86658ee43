"""wandb_peer.py WRITE_RUN FOLLOWER: the real wandb, offline, gets a run's metrics through the shipped Python file."""

import glob
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

from wandb.proto import wandb_internal_pb2

WRITE_RUN, FOLLOWER = sys.argv[1:3]
TAGS = ["tests", "with space"]


def records_of(path):
    """Reads a file of wandb: 7 bytes of header, then LevelDB's log format, whose records are protobuf messages."""
    with open(path, "rb") as file:
        log = file.read()
    at, data, block = 7, b"", 32768
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
        _, length, kind = struct.unpack("<IHB", log[at : at + 7])
        data += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record
            data = b""


def values_of(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


class WandB(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.folder = temp.name

    def follow(self):
        """Runs the follower on what is there. Returns the records of the newest file of wandb."""
        environment = {**os.environ, "WANDB_SILENT": "true"}
        environment.pop("WANDB_MODE", None)
        subprocess.run([sys.executable, FOLLOWER, self.folder, "a-project", "a-team", "offline", *TAGS],
                       stdin=subprocess.DEVNULL, check=True, env=environment)
        files = glob.glob(f"{self.folder}/wandb/offline-run-*/run-*.wandb")
        return list(records_of(max(files, key=os.path.getmtime)))

    def write(self, *arguments):
        subprocess.run([WRITE_RUN, self.folder, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def test_metrics_project_and_tags_arrive(self):
        self.write(20)
        records = self.follow()
        run = next(record.run for record in records if record.HasField("run"))
        self.assertEqual((run.project, run.entity, list(run.tags)), ("a-project", "a-team", TAGS))
        rows = [values_of(record.history.item) for record in records if record.HasField("history")]
        losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
        self.assertEqual(losses, {step: 4 / step for step in range(1, 21)})
        self.assertEqual([row["eval/loss"] for row in rows if "eval/loss" in row], [0.25])
        self.assertEqual(rows[0]["time/forward"], 0.15)
        config = {}
        for record in records:
            for update in (record.config.update, record.run.config.update):
                config.update(values_of(update))
        self.assertEqual((config["optimizer"], config["ranks"]), ("adamw", 2))
        self.assertEqual([record.exit.exit_code for record in records if record.HasField("exit")], [0])

    def test_a_resumed_run_has_the_same_id_and_only_new_lines(self):
        self.write(20)
        first = next(record.run for record in self.follow() if record.HasField("run"))
        self.write(30, 12)
        records = self.follow()
        self.assertEqual(next(record.run.run_id for record in records if record.HasField("run")), first.run_id)
        rows = [values_of(record.history.item) for record in records if record.HasField("history")]
        self.assertEqual([row["step"] for row in rows if "loss" in row], list(range(13, 31)))

    def test_a_loss_that_is_not_finite_arrives(self):
        self.write(3)
        path = f"{self.folder}/metrics.jsonl"
        with open(path) as file:
            lines = [json.loads(line) for line in file]
        next(line for line in lines if line["kind"] == "step")["loss"] = "nan"
        with open(path, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        rows = [values_of(record.history.item) for record in self.follow() if record.HasField("history")]
        self.assertTrue(math.isnan(float(rows[0]["loss"])))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
