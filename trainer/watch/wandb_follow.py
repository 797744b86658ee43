"""Sends the metrics of a run to Weights & Biases. The trainer starts it; it ends when standard input does.

wandb_follow.py RUN PROJECT ENTITY MODE TAG...    ENTITY "": wandb's default

It reads RUN/metrics.jsonl as lines are added. RUN/wandb/followed.json keeps the id of the run at W&B and how many
bytes were sent, so a run that is resumed goes on there.
"""

import json
import os
import select
import sys

sys.path = [folder for folder in sys.path if folder]  # not the current folder, whose files may have any name
import wandb

SECONDS_BETWEEN_READS = 0.5
KILLED = 1  # the exit code of a run without an orderly end
NAMES = {"lr": "learning_rate", "memory_bytes": "memory/peak_bytes", "seconds": "time/step"}


class Followed:
    """RUN/wandb/followed.json."""

    def __init__(self, run):
        self.path = os.path.join(run, "wandb", "followed.json")
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        try:
            with open(self.path) as file:
                known = json.load(file)
            self.id, self.bytes = str(known["id"]), int(known["bytes"])
        except (OSError, ValueError, KeyError):
            self.id, self.bytes = os.urandom(4).hex(), 0

    def save(self):
        with open(self.path + ".new", "w") as file:
            json.dump({"id": self.id, "bytes": self.bytes}, file)
        os.replace(self.path + ".new", self.path)


def number(value):
    """The file has "nan", "inf" and "-inf" as texts."""
    return float(value) if isinstance(value, str) else value


def send_start(run, record):
    facts = {key: record[key] for key in ("run", "ranks", "nodes", "backend", "device", "model", "parameters", "steps")}
    run.config.update({**facts, **record["config"], "versions": record["versions"]}, allow_val_change=True)


def send_step(run, record):
    values = {"time/" + use: seconds for use, seconds in record["times"].items()}
    for key, value in record.items():
        if key not in ("kind", "time", "times") and value is not None:
            values[NAMES.get(key, key)] = number(value)
    run.log(values)


def send_eval(run, record):
    run.log({"step": record["step"], "eval/loss": number(record["loss"])})


def send_end(run, record):
    run.summary["reason"] = record["reason"]


SEND = {"start": send_start, "step": send_step, "eval": send_eval, "end": send_end}


def send_new_lines(run, metrics, followed, code):
    """Sends whole lines only. Returns the exit code of the run's end, or `code` if there is no new line."""
    metrics.seek(followed.bytes)
    for line in metrics:
        if not line.endswith(b"\n"):
            break
        followed.bytes += len(line)
        try:
            record = json.loads(line)
            kind = record["kind"]
            code = record["exit"] if kind == "end" else KILLED
            if kind in SEND:
                SEND[kind](run, record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"skipped a line that is no record ({error!r}): {line!r}", flush=True)
    return code


def main(folder, project, entity, mode, *tags):
    followed = Followed(folder)
    followed.save()
    run = wandb.init(
        project=project,
        entity=entity or None,
        mode=mode,
        tags=list(tags),
        name=os.path.normpath(folder),
        id=followed.id,
        resume="allow" if mode == "online" else None,
        dir=folder,
        settings=wandb.Settings(console="off"),
    )
    # A resumed run repeats steps, so the axis is the metric and not wandb's own count.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    running, code = True, KILLED
    with open(os.path.join(folder, "metrics.jsonl"), "rb") as metrics:
        while running:
            running = not select.select([sys.stdin], [], [], SECONDS_BETWEEN_READS)[0]
            code = send_new_lines(run, metrics, followed, code)
            followed.save()
    run.finish(exit_code=code)


if __name__ == "__main__":
    main(*sys.argv[1:])
