"""Compares docs/options.md with the option structs of the headers. Prints every breach and exits 1 when there is one.

- every field of a struct is in its table, and the table has no other
- the default in the table is the one in the header
- `Struct::field` and `Strategy::name` anywhere on the page exist, and every strategy is named
- every struct of options.h has a table
"""

import re
import sys
from pathlib import Path

PAGE = "docs/options.md"
STRUCTS = {
    "ShardOptions": "include/fsdp/options.h",
    "Precision": "include/fsdp/precision.h",
    "UnitOptions": "include/fsdp/options.h",
    "Reproducible": "include/fsdp/options.h",
    "FullParamsOptions": "include/fsdp/scopes.h",
    "Offload": "include/fsdp/memory_options.h",
    "NoSyncOptions": "include/fsdp/scopes.h",
    "KeepGatheredOptions": "include/fsdp/scopes.h",
    "CommOptions": "include/fsdp/comm_options.h",
    "InitOptions": "include/fsdp/world.h",
    "SaveOptions": "include/fsdp/checkpoint.h",
    "LoadOptions": "include/fsdp/checkpoint.h",
    "ScheduleOptions": "include/fsdp/schedule.h",
    "PlannedRanks": "include/fsdp/sharding_plan.h",
}
NO_OPTIONS = {"ModuleInfo"}  # what a wrap policy is shown

FIELD = re.compile(r"^.+?\s+(?P<name>\w+)\s*(?:=\s*(?P<assigned>.+)|\{(?P<braced>.*)\})?$")
CODE = re.compile(r"`([^`]*)`")


def without_comments(text):
    return re.sub(r"//.*", "", text)


def body(text, kind, name):
    """What stands between the braces of `kind name`, a definition that ends with a line `};`."""
    found = re.search(rf"^{kind} {name}\b[^;{{]*\{{(.*?)^\}};", without_comments(text), re.MULTILINE | re.DOTALL)
    return found.group(1) if found else None


def fields(text, struct):
    """Field -> default, as the header writes it, less the name of an enum; '' where there is none."""
    found = {}
    for declaration in (body(text, "struct", struct) or "").split(";"):
        match = FIELD.match(" ".join(declaration.split()))
        if match:
            default = match["assigned"] or match["braced"] or ""
            found[match["name"]] = re.sub(r"^\w+::(?=\w+$)", "", default)
    return found


def enumerators(text, enum):
    return re.findall(r"\w+", body(text, "enum class", enum) or "")


def table(page, struct):
    """(field, default) of the rows below the heading of `struct`; None where there is no such heading."""
    section = re.search(rf"^#+ `{struct}`\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    if not section:
        return None
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in section.group(1).splitlines() if line.startswith("|")]
    first_code = lambda cell: (CODE.match(cell) or [None, ""])[1]
    return [(first_code(row[0]), first_code(row[1])) for row in rows[2:]]


def check_table(struct, wanted, rows):
    if rows is None:
        yield f"{PAGE}: no table of {struct}"
        return
    for name, default in wanted.items():
        found = [row_default for row_name, row_default in rows if row_name == name]
        if not found:
            yield f"{PAGE}: {struct}::{name} is not in the table"
        for one in found:
            if one != default:
                yield f"{PAGE}: the default of {struct}::{name} is `{default}` in the header, and `{one}` here"
    for name, _ in rows:
        if name not in wanted:
            yield f"{PAGE}: {struct} has no field '{name}'"


def check_names(page, known):
    for owner, name in re.findall(r"`(\w+)::(\w+)\b", page):
        if owner in known and name not in known[owner]:
            yield f"{PAGE}: {owner}::{name} does not exist"


def check(root):
    root = Path(root)
    page = (root / PAGE).read_text(encoding="utf-8")
    read = lambda path: (root / path).read_text(encoding="utf-8")
    options = read("include/fsdp/options.h")
    known = {struct: fields(read(path), struct) for struct, path in STRUCTS.items()}
    breaches = [breach for struct, wanted in known.items() for breach in check_table(struct, wanted, table(page, struct))]
    for struct in re.findall(r"^struct (\w+) \{", options, re.MULTILINE):
        if struct not in STRUCTS and struct not in NO_OPTIONS:
            breaches.append(f"include/fsdp/options.h: {struct} is not known to check_options.py")
    known["Strategy"] = enumerators(options, "Strategy")
    breaches += [f"{PAGE}: Strategy::{name} is not named" for name in known["Strategy"] if f"`Strategy::{name}`" not in page]
    breaches += [f"no fields of {name} were found" for name, found in known.items() if not found]
    return breaches + list(check_names(page, known))


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) if found else f"{PAGE} says what the headers say")
    sys.exit(1 if found else 0)
