"""Contract: public means documented, with a reference, and with a row in the table."""

import importlib
import types

import pytest
import table

import gpo

KINDS = (
    "advantage", "allocation", "auxiliary", "behaviour", "buffer", "context",
    "curriculum", "gradient", "objective", "recipes", "reward", "sampling", "select",
    "weight",
)  # fmt: skip


def public(path: str) -> list[str]:
    """Public names of a package: its ``__all__``, and the parts of listed modules."""
    found = []
    module = importlib.import_module(f"gpo.{path}")
    parts = [n for n, v in vars(module).items() if hasattr(v, "__wrapped__")]
    for name in getattr(module, "__all__", parts):
        inner = isinstance(getattr(module, name), types.ModuleType)
        found += public(f"{path}.{name}") if inner else [f"{path}.{name}"]
    return found


def resolve(name: str):
    value = gpo
    for part in name.split("."):
        value = getattr(value, part)
    return value


NAMES = [name for kind in KINDS for name in public(kind)]


def test_there_is_much_to_document():
    assert len(NAMES) > 60
    assert set(KINDS) <= set(gpo.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_a_reference_and_a_row(name):
    doc = resolve(name).__doc__ or ""
    assert "Reference:" in doc, f"gpo.{name} names no reference"
    rows = {row.public for row in table.TABLE}
    assert name in rows, f"gpo.{name} has no row in tests/table.py"


@pytest.mark.parametrize("name", sorted({row.public for row in table.TABLE}))
def test_rows_name_something_public(name):
    doc = resolve(name).__doc__ or ""
    assert len(doc) > 20
    assert "Reference:" in doc or name.split(".")[0] not in KINDS, name


@pytest.mark.parametrize("name", gpo.__all__)
def test_top_level_names_are_documented(name):
    assert resolve(name).__doc__, name


def test_every_row_has_golden_numbers_or_says_why_not():
    bare = [r.name for r in table.TABLE if not r.golden and "golden" not in r.excused]
    assert not bare, f"no golden numbers: {bare}"


def test_row_names_are_unique():
    assert len(table.BY_NAME) == len(table.TABLE)


CONTRACTS = {
    "golden", "permute", "relabel", "masked", "removed", "edges", "single", "equal",
    "whole",
}  # fmt: skip


def test_excuses_are_known_and_have_a_reason():
    for row in table.TABLE:
        assert row.excused.keys() <= CONTRACTS, row.name
        assert all(len(reason) > 5 for reason in row.excused.values()), row.name
