"""resume.py PROGRAM: an example that saves is ended and started again, also on another number of ranks. The loss it
prints must go on where it was."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def run(program, folder, ranks, steps):
    command = [program, "--ranks", str(ranks), "--steps", str(steps), "--folder", str(folder)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    print(said)
    return said


def number(pattern, text):
    found = re.search(pattern, text)
    assert found, f"no '{pattern}' in:\n{text}"
    return float(found[1])


def train_gpt(program, folder):
    saved = number(r"2 ranks saved .*step-00000020: loss (\S+)", run(program, folder / "run", 2, 20))
    said = run(program, folder / "run", 3, 40)
    resumed = number(r"3 ranks resume .*step-00000020, which 2 ranks saved: loss (\S+)", said)
    assert resumed == saved, f"the loss is {resumed} after resuming, it was {saved}"
    later = number(r"3 ranks saved .*step-00000040: loss (\S+)", said)
    assert later < saved, f"the loss went from {saved} to {later}"


def checkpoint(program, folder):
    last = r"step 40  loss (\S+)"
    wanted = number(last, run(program, folder / "whole", 2, 40))
    run(program, folder / "first", 2, 20)
    # Nothing of it may be on the way: on as many ranks it is the same run, on others sums are rounded differently.
    for ranks, tolerance in ((2, 0.0), (3, 1e-4), (1, 1e-4)):
        folder_now = folder / f"on{ranks}"
        shutil.copytree(folder / "first", folder_now)
        said = run(program, folder_now, ranks, 40)
        then, now = (number(p, said) for p in (r"loss (\S+) then", r"then, (\S+) now"))
        assert abs(now - then) <= (2e-6 if tolerance else 0.0), f"{ranks} ranks: loss {then} then, {now} now"
        got = number(last, said)
        assert abs(got - wanted) <= tolerance * wanted, f"{ranks} ranks: loss {got}, without a stop {wanted}"
        kept = sorted(path.name for path in folder_now.glob("step-*"))
        assert kept == ["step-00000030", "step-00000040"], kept


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        {"03_train_gpt": train_gpt, "08_checkpoint": checkpoint}[Path(sys.argv[1]).name](sys.argv[1], Path(temporary))
