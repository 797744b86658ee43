"""Collectives of training steps that are more than a forward and a backward, counted."""

from . import output, programs

FIELDS = ("all_gathers", "reduce_scatters", "all_reduces", "step_ms")


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=24, help="units of the model")
    output.add_options(parser, "plan_bench")


def summarize(lines, units):
    """Goals: one all-reduce per backward, and no more reductions and gathers than a step needs."""
    of = {line["program"]: line for line in lines}
    missed = [
        f"{name}: {line['all_reduces']} all-reduces in {line['backwards']} backwards"
        for name, line in of.items()
        if name != "dropped_blocks" and line["all_reduces"] > line["backwards"]
    ]
    if of["input_gradients"]["reduce_scatters"] > units:
        missed.append(f"input_gradients: {of['input_gradients']['reduce_scatters']} reduce-scatters")
    if of["keep_gathered"]["all_gathers"] > units:
        missed.append(f"keep_gathered: {of['keep_gathered']['all_gathers']} all-gathers")
    return {"bench": "plans"} | {name: line["all_reduces"] for name, line in of.items()} | {"ok": not missed}, missed


def run(options):
    command = [programs.our_program(options.bin, "plan_bench"), "--ranks", options.ranks, "--blocks", options.blocks]
    with output.json_lines(options.out, "plans") as emit:
        lines = programs.run("plan_bench", command)
        for line in lines:
            emit(line)
        rows = [["program", "backwards", *FIELDS]]
        rows += [[line["program"], str(line["backwards"]), *(str(line[field]) for field in FIELDS)] for line in lines]
        print("\n" + output.aligned(rows) + "\n")
        summary, missed = summarize(lines, options.blocks)
        for text in missed:
            programs.say(f"bench/run plans: missed: {text}")
        emit(summary)
