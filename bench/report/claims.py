"""Claims of the literature about sharded training, each beside what ours measures."""

import dataclasses
import pathlib

from . import output
from .claim_runs import FLOAT, MIB, STATE_VALUES, Runs, Search
from .output import rounded
from .programs import BenchError, say

YES, NO = "yes", "no"
MET, MISSED, OPEN = "met", "missed", "open"

# What must be reached. The literature says 3.33x; 13% and 0.59%; 33 to 38% and 20 to 25%; 20 to 30%; 5 to 10x.
LARGER = 3.33
FASTER, MORE_MEMORY = 0.13, 0.0059
FREED, SLOWER = 0.33, 0.25
MORE_BYTES = 0.30
LESS_MEMORY = 5.0
STATE_RATIO, LOSS_RATIO = 4.0, 10.0
MAX_DIFF = 3e-8
PADDING = 0.02  # sharded state may exceed 4N/W by this fraction


def add_options(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="small models and one round: a look, not a result")
    parser.add_argument("--rounds", type=int, help="how often timed programs take turns, by default 5")
    parser.add_argument("--cap-mib", type=int, help="memory per rank of the largest model, by default 192 MiB")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {','.join(CLAIMS)}")
    parser.add_argument("--bin", default="build/bin", metavar="DIR", help="where claims_bench is")
    parser.add_argument("--out", default=output.RESULTS, type=pathlib.Path, metavar="DIR", help="for the JSON lines")


@dataclasses.dataclass
class Row:
    """One way to measure a claim."""

    way: str
    ours: str
    goal: str = ""  # empty: for comparison only
    reached: str = ""  # yes, no, or open: this machine cannot show it


@dataclasses.dataclass
class Claim:
    """What is claimed, the ways it was measured, and the figures for the summary."""

    claimed: str
    rows: list
    figures: dict
    open_reason: str = ""
    needs: object = any  # of its rows must reach their goals; or all

    def verdict(self):
        found = [row.reached for row in self.rows if row.goal]
        if self.needs(one == YES for one in found):
            return MET
        return OPEN if OPEN in found and (self.needs is any or NO not in found) else MISSED


def judge(reached, open_reason=""):
    return YES if reached else OPEN if open_reason else NO


def needs_ranks(ranks):
    """A claim that is open where the machine has fewer GPUs."""

    def with_ranks(measure):
        def measured(runs):
            if ranks <= runs.most_ranks:
                return measure(runs)
            reason = f"needs {ranks} GPUs, and this machine has {runs.most_ranks}"
            return Claim(CLAIMED[measure.__name__], [Row("", "-", "-", OPEN)], {}, reason)

        return measured

    return with_ranks


def percent(ratio, more, less):
    """0.97 -> '3.0% less'."""
    change = abs(ratio - 1) * 100
    return f"{change:.{1 if change >= 1 else 2}f}% {more if ratio >= 1 else less}"


@needs_ranks(4)
def largest_model(runs):
    planned, measured = {}, {}
    for strategy in ("no_shard", "full_shard"):
        search = Search(runs, strategy, 4)
        planned[strategy] = search.params(search.planned())
        measured[strategy] = search.params(search.measured())
    rows, figures = [], {}
    for way, found in (("plan", planned), ("run", measured)):
        ratio = figures[way] = found["full_shard"] / found["no_shard"]
        millions = [f"{found[strategy] / 1e6:.1f} M" for strategy in ("full_shard", "no_shard")]
        row = Row(f"by {way}, 4 ranks, {runs.cap // MIB} MiB each", f"{ratio:.2f}x: {' / '.join(millions)}")
        if way == "run":
            row.goal, row.reached = f">= {LARGER}x", judge(ratio >= LARGER)
        rows.append(row)
    return Claim(CLAIMED["largest_model"], rows, figures)


@needs_ranks(2)
def backward_prefetch(runs):
    policies = {policy: ["--prefetch", policy] for policy in ("none", "post", "pre")}
    found = runs.take_turns(policies, ranks=2, **runs.sizes["prefetch"])
    reason = ""
    if runs.device == "cpu":
        reason = "CPU ranks copy with the cores that compute, so all-gathers have little to overlap with"
    rows, figures = [], {}
    time, memory = found.pop("pre")
    for other, (other_time, other_memory) in found.items():
        speed = figures[f"speed_vs_{other}"] = other_time / time
        more = figures[f"memory_vs_{other}"] = memory / other_memory
        text = f"{percent(speed, 'faster', 'slower')}, {percent(more, 'more', 'less')} memory"
        little = more <= 1 + MORE_MEMORY
        reached = judge(little and speed >= 1 + FASTER, reason if little else "")
        rows.append(Row(f"against {other}, 2 ranks", text, f">= {FASTER:.0%}, <= {MORE_MEMORY:.2%}", reached))
    return Claim(CLAIMED["backward_prefetch"], rows, figures, reason)


def checkpointing(runs):
    ranks = min(2, runs.most_ranks)
    layers = {"none": [], "every layer": ["--recompute", 1], "every second layer": ["--recompute", 2]}
    found = runs.take_turns(layers, ranks=ranks, **runs.sizes["checkpointing"])
    rows, figures = [], {}
    plain_time, plain_memory = found.pop("none")
    for which, (time, memory) in found.items():
        freed, slower = 1 - memory / plain_memory, time / plain_time - 1
        text = f"{freed:.1%} freed, {percent(1 + slower, 'slower', 'faster')}"
        goal = f">= {FREED:.0%}, <= {SLOWER:.0%}"
        rows.append(Row(f"{which}, ranks: {ranks}", text, goal, judge(freed >= FREED and slower <= SLOWER)))
        key = which.replace(" ", "_")
        figures |= {f"freed_{key}": freed, f"slower_{key}": slower}
    return Claim(CLAIMED["checkpointing"], rows, figures)


def sharded_state(runs):
    rows, figures = [], {}
    for ranks in runs.possible(1, 2, 4, 8):
        line = runs.train(ranks=ranks, **runs.sizes["deep"])
        kinds = [line[kind] / line["params"] / FLOAT for kind in ("parameter_bytes", "gradient_bytes", "moment_bytes")]
        held = figures[str(ranks)] = sum(kinds)
        text = f"{held:.3f}N = {' + '.join(f'{kind:.3f}' for kind in kinds)}"
        most = STATE_VALUES / ranks * (1 + PADDING)
        way = f"ranks: {ranks}, 4N/W = {STATE_VALUES / ranks:g}N"
        rows.append(Row(way, text, f"<= {most:.2f}N", judge(held <= most)))
    return Claim(CLAIMED["sharded_state"], rows, figures, needs=all)


def sent_bytes(line):
    """By a rank in a step, where every collective sends as little as it can."""
    moved, ranks = line["comm_bytes"], line["ranks"]
    once = moved.get("all_gather", 0) + moved.get("reduce_scatter", 0)
    return (once + 2 * moved.get("all_reduce", 0)) * (ranks - 1) / ranks


@needs_ranks(4)
def communication(runs):
    sent = lambda *words: sent_bytes(runs.train(*words, ranks=4, **runs.sizes["deep"]))
    ddp = {dtype: sent("--strategy", "no_shard", *words) for dtype, words in (("fp32", []), ("bf16", ["--bf16"]))}
    rows, figures = [], {}
    for way, dtype, words in (
        ("full_shard", "fp32", []),
        ("full_shard, every second layer kept", "fp32", ["--keep-every", 2]),
        ("shard_grad_op", "fp32", ["--strategy", "shard_grad_op"]),
        ("full_shard", "bf16", ["--bf16"]),
    ):
        more = sent(*words) / ddp[dtype]
        text = f"{percent(more, 'more', 'fewer')} bytes"
        rows.append(Row(f"{way}, {dtype}", text, f"<= {MORE_BYTES:.0%} more", judge(more <= 1 + MORE_BYTES)))
        figures[f"{way.replace(', ', '_').replace(' ', '_')}_{dtype}"] = more
    return Claim(CLAIMED["communication"], rows, figures)


@needs_ranks(8)
def less_memory(runs):
    rows, figures = [], {}
    for key, way, words in (("plain", "8 ranks", []), ("checkpointing", "8 ranks, checkpointing", ["--recompute", 1])):
        peaks = []
        for strategy in ("no_shard", "full_shard"):
            line = runs.measure_memory("--strategy", strategy, *words, ranks=8, **runs.sizes["stateful"])
            peaks.append(line["resident_peak_bytes"])
        ratio = figures[key] = peaks[0] / peaks[1]
        text = f"{ratio:.2f}x: {peaks[0] / MIB:.0f} / {peaks[1] / MIB:.0f} MiB"
        rows.append(Row(way, text, f">= {LESS_MEMORY:g}x", judge(ratio >= LESS_MEMORY)))
    return Claim(CLAIMED["less_memory"], rows, figures)


@needs_ranks(4)
def small_run(runs):
    whole, sharded = (runs.run("learn", "--strategy", one, ranks=4) for one in ("no_shard", "full_shard"))
    state = whole["state_bytes"] / sharded["state_bytes"]
    first, last = sharded["first_loss"], sharded["last_loss"]
    fall = first / last
    rows = [
        Row("state, 4 ranks", f"{state:.2f}x", f">= {STATE_RATIO:.2f}x", judge(round(state, 2) >= STATE_RATIO)),
        Row("loss", f"{first:.3f} to {last:.2g}: {fall:.0f}x", f">= {LOSS_RATIO:g}x", judge(fall >= LOSS_RATIO)),
    ]
    return Claim(CLAIMED["small_run"], rows, {"state": state, "loss": fall}, needs=all)


def equality(runs):
    rows, figures = [], {}
    for data, way in (
        ("same", "the same batch on every rank"),
        ("split", "the batch split over the ranks"),
        ("reproducible", "split, reproducible mode"),
    ):
        lines = [runs.run("equal", "--data", data, ranks=ranks) for ranks in runs.possible(1, 2, 4, 8)]
        diffs = [line["max_diff"] for line in lines]
        same_bits = len({line["hash"] for line in lines}) == 1
        text = " ".join(f"{diff:.1e}" if diff else "0" for diff in diffs)
        most = 0 if data == "same" else MAX_DIFF
        reached = max(diffs) <= most and (same_bits or data == "split")
        goal = f"<= {most:g}" + ("" if data == "split" else ", bits equal")
        rows.append(Row(way, f"{text}; bits {'equal' if same_bits else 'differ'}", goal, judge(reached)))
        figures[data] = max(diffs)
    return Claim(CLAIMED["equality"], rows, figures, needs=all)


CLAIMED = {
    "largest_model": "full sharding holds 3.33x the parameters of DDP",
    "backward_prefetch": "BACKWARD_PRE: 13% faster, 0.59% more memory",
    "checkpointing": "checkpointing frees 33-38% for 20-25% time",
    "sharded_state": "4N values become 4N/W",
    "communication": "sharding sends 20-30% more than DDP",
    "less_memory": "5-10x less memory per rank",
    "small_run": "4 ranks: state 4.00x, loss 0.124 to 0.011",
    "equality": "1, 2, 4, 8 ranks: parameters within 3e-8",
}
CLAIMS = {
    "largest_model": largest_model,
    "backward_prefetch": backward_prefetch,
    "checkpointing": checkpointing,
    "sharded_state": sharded_state,
    "communication": communication,
    "less_memory": less_memory,
    "small_run": small_run,
    "equality": equality,
}


def table(claims):
    """A row per way of measuring; left-aligned, since it is mostly words."""
    rows = [["claim", "verdict", "measured", "ours", "goal", "reached"]]
    for claim in claims.values():
        heads = [[claim.claimed, claim.verdict()]] + [["", ""]] * len(claim.rows)
        rows += [head + [row.way, row.ours, row.goal, row.reached] for head, row in zip(heads, claim.rows)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    lines += [f"open: {claim.claimed}: {claim.open_reason}" for claim in claims.values() if claim.verdict() == OPEN]
    return "\n".join(lines)


def summarize(claims, runs):
    digits = lambda value: value if abs(value) < 1e-3 else rounded(value)
    figures = {name: {key: digits(value) for key, value in claim.figures.items()} for name, claim in claims.items()}
    verdicts = {name: claim.verdict() for name, claim in claims.items()}
    listed = {kind: [name for name, found in verdicts.items() if found == kind] for kind in (MET, MISSED, OPEN)}
    return {"bench": "claims", "device": runs.device} | figures | listed | {"ok": not listed[MISSED]}


def run(options):
    chosen = options.only or list(CLAIMS)
    if unknown := set(chosen) - set(CLAIMS):
        raise BenchError(f"no claim {', '.join(sorted(unknown))}; there are {', '.join(CLAIMS)}")
    with output.json_lines(options.out, f"claims-{options.device}") as emit:
        runs = Runs(options, emit)
        claims = {name: CLAIMS[name](runs) for name in chosen}
        print("\n" + table(claims) + "\n")
        summary = summarize(claims, runs)
        for name in summary[MISSED]:
            say(f"bench/run claims: missed: {CLAIMED[name]}")
        emit(summary)
