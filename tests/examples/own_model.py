"""own_model.py PROGRAM CONFIG: the example with a model of its own trains as the config file says, is resumed on another number
of ranks, and leaves a run that looks like one of `fsdp train`."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def train(program, config, folder, ranks, *arguments):
    command = [program, "--ranks", str(ranks), "--config", config, "--run", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    print(done.stdout, done.stderr)
    return done


def figures(said):
    found = re.search(r"own model: loss (\S+) -> (\S+) in (\d+) steps; stopped: all steps done", said)
    assert found, said
    return float(found[1]), float(found[2]), int(found[3])


def main(program, config):
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        first, last, steps = figures(train(program, config, run, 2, "--set", "training.max_steps=30").stdout)
        assert steps == 30 and last < 0.8 * first, (first, last, steps)

        refused = train(program, config, run, 2)
        assert refused.returncode != 0 and "holds a run already" in refused.stderr, refused.stderr

        resumed, later, steps = figures(train(program, config, run, 3, "--resume", "--set", "training.max_steps=40").stdout)
        assert steps == 40 and resumed < 1.2 * last and later < first, (last, resumed, later, steps)
        assert (run / "step-00000040" / "manifest.json").is_file()

        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [r["step"] for r in records if r["kind"] == "step"] == list(range(1, 41)), "a record per step"
        assert {r["ranks"] for r in records if r["kind"] == "start"} == {2, 3}

        wrong = train(program, config, Path(temporary) / "other", 2, "--set", "training.max_stepz=3")
        assert wrong.returncode != 0 and "training.max_stepz" in wrong.stderr, wrong.stderr


if __name__ == "__main__":
    main(*sys.argv[1:])
