"""Every example in a docstring of the algebra runs."""

import doctest
import importlib
import pkgutil

import pytest

import gpo

# models, tasks, rollouts and training have tests of their own
OTHERS = ("gpo.models", "gpo.tasks", "gpo.train", "gpo.rollout", "gpo.cli")
MODULES = [
    m.name
    for m in pkgutil.walk_packages(gpo.__path__, "gpo.", onerror=lambda name: None)
    if not m.name.startswith(OTHERS)
]


def test_all_modules_are_found():
    assert len(MODULES) > 40


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
