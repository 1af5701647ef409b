"""The index of parts and recipes, read from their docstrings.

``python -m gpo.methods`` prints METHODS.md, ``--json`` the same for programs: one object
a recipe or part with name, kind, entries, paper and status.
"""

import argparse
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from gpo.recipe import Recipe

KINDS = (
    "recipes", "curriculum", "allocation", "context", "behaviour", "sampling",
    "reward", "buffer", "advantage", "select", "weight", "objective.ratio",
    "objective.trust", "objective.regulariser", "objective", "auxiliary", "gradient",
    "combine", "segment",
)  # fmt: skip
CORE = ("apply", "loss", "credit", "describe", "identity", "stateless", "stochastic")
SLOT_OF = {"sampling": "logits"}


def public(module) -> Iterator[tuple[str, Any]]:
    """Public functions of a module or package, in order of their names."""
    names = getattr(module, "__all__", None) or [
        n for n, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and n[0] != "_"
    ]  # fmt: skip
    for name in sorted(names):
        found = getattr(module, name)
        if inspect.isfunction(found):
            yield name, found


def section(doc: str, name: str) -> str:
    """Text of one section of a Google docstring on one line, or ""."""
    pattern = rf"^\s*{name}:(.*?)(?=^\s*[A-Z][a-z]+:|\Z)"
    found = re.search(pattern, doc, re.DOTALL | re.MULTILINE)
    return " ".join(found.group(1).split()) if found else ""


def entry(kind: str, name: str, function) -> dict[str, Any]:
    """What the index says of one part or recipe."""
    doc = inspect.getdoc(function) or ""
    paper = section(doc, "Reference")
    source = inspect.getsource(function) if kind == "recipes" else ""
    slots = [s for s in Recipe._fields if re.search(rf"\b{s}=", source)]
    first = doc.split("\n\n")[0].replace("\n", " ")
    return {
        "name": f"gpo.{kind}.{name}" if kind != "core" else f"gpo.{name}",
        "kind": "recipe" if kind == "recipes" else kind.split(".")[0],
        "summary": first,
        "slots": slots,
        "entries": [int(n) for n in re.findall(r"\[(\d+)\]", paper)],
        "paper": paper,
        "status": section(doc, "Status").rstrip(".") or "library word",
        "deviations": section(doc, "Deviations"),
    }


def index() -> list[dict[str, Any]]:
    """All public recipes and parts."""
    rows = []
    for kind in KINDS:
        module = importlib.import_module(f"gpo.{kind}")
        rows += [entry(kind, name, f) for name, f in public(module)]
    core = importlib.import_module("gpo")
    return rows + [entry("core", name, getattr(core, name)) for name in CORE]


def markdown() -> str:
    """METHODS.md."""
    about = (
        "Made by `python -m gpo.methods > METHODS.md` from the docstrings; a test fails "
        "when it is stale. Status: *code*, an implementation was read; *paper*, the "
        "formula was; *known*, general knowledge; *library word*, a building block. "
        "Numbers in brackets are entries of the index of methods. Every name has a row "
        "in `tests/table.py`."
    )
    head = ["# Methods", "", about]
    groups: dict[str, list[str]] = {}
    for row in index():
        slots = f" *Slots:* {', '.join(row['slots'])}." if row["slots"] else ""
        note = f" *Deviations:* {row['deviations']}" if row["deviations"] else ""
        cells = (row["summary"] + slots + note, row["paper"], row["status"])
        cells = " | ".join(c.replace("|", r"\|") for c in cells)
        line = f"| `{row['name']}` | {cells} |"
        groups.setdefault(row["kind"], []).append(line)
    for kind, lines in groups.items():
        slot = f" (slot `{SLOT_OF[kind]}`)" if kind in SLOT_OF else ""
        head += ["", f"## {kind}{slot}", "", "| name | what it does | paper | status |",
                 "|---|---|---|---|", *lines]  # fmt: skip
    return "\n".join(head)


def main() -> None:
    """Prints the index."""
    parser = argparse.ArgumentParser(description="the index of parts and recipes")
    parser.add_argument("--json", action="store_true", help="for programs")
    wanted = parser.parse_args().json
    print(json.dumps(index(), indent=1, ensure_ascii=False) if wanted else markdown())


if __name__ == "__main__":
    main()
