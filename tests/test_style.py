"""Lint and types are clean."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def run(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint():
    run("ruff", "check", ".")


def test_format():
    run("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_types():
    run("pyright", "--pythonpath", sys.executable, "gpo")


def test_no_file_is_too_long():
    long = [
        p for d in ("gpo", "experiments") for p in (ROOT / d).rglob("*.py")
        if len(p.read_text().splitlines()) > 400
    ]  # fmt: skip
    assert not long
