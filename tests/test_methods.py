"""The index of methods is complete and METHODS.md is what the docstrings say."""

import json
import pathlib
import subprocess
import sys

from gpo import methods

ROOT = pathlib.Path(__file__).parents[1]


def test_file_is_current():
    kept = (ROOT / "METHODS.md").read_text()
    assert kept == methods.markdown() + "\n", (
        "METHODS.md is stale: run `python -m gpo.methods > METHODS.md`"
    )


def test_json():
    out = subprocess.run(
        [sys.executable, "-m", "gpo.methods", "--json"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    rows = json.loads(out)
    assert all({"name", "kind", "entries", "paper", "status"} <= set(r) for r in rows)
    entries = {n for r in rows for n in r["entries"]}
    assert {187, 149, 90, 70, 84, 3, 280, 316, 171, 200, 285} <= entries
    names = {r["name"] for r in rows}
    base = [
        "grpo",
        "bnpo",
        "dr_grpo",
        "rloo",
        "reinforce_pp",
        "dapo",
        "gspo",
        "cispo",
        "gpg",
    ]
    assert {f"gpo.recipes.{n}" for n in base} <= names
    assert {"gpo.apply", "gpo.loss", "gpo.segment.quantile"} <= names
