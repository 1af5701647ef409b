"""Flags from a dataclass, and recipes and tasks from dotted paths."""

import dataclasses
import sys

import pytest

import gpo
from gpo import cli, train


@dataclasses.dataclass(frozen=True)
class Config:
    # steps of the run
    steps: int = 40
    # how large they are
    learning_rate: float = 2e-5
    # go on
    resume: bool = False


def test_fields_become_flags_and_comments_their_help(capsys):
    words = ["--steps", "3", "--learning-rate", "1e-3", "--resume"]
    assert cli.parse(Config, words) == Config(3, 1e-3, True)
    assert cli.parse(Config, []) == Config()
    with pytest.raises(SystemExit):
        cli.parse(Config, ["--help"])
    shown = capsys.readouterr().out
    assert "--learning-rate" in shown
    assert "how large they are" in shown
    with pytest.raises(SystemExit):
        cli.parse(Config, ["--stepz", "3"])


def test_paths_name_recipes_and_users_own(tmp_path, monkeypatch):
    assert cli.resolve("gpo.recipes.dapo") is gpo.recipes.dapo
    assert cli.resolve("gpo.recipes") is gpo.recipes
    (tmp_path / "mine.py").write_text(
        "import gpo\n\nclass Box:\n"
        "    @staticmethod\n    def recipe(high=0.4):\n"
        "        return gpo.recipes.grpo(high=high)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = cli.make("mine.Box.recipe", '{"high": 0.5}')
    assert "high=0.5" in gpo.describe(made)


def test_a_path_that_leads_nowhere_lists_what_is_there():
    with pytest.raises(ValueError, match="it has ar3po, .* Did you mean 'dapo'"):
        cli.resolve("gpo.recipes.dappo")
    with pytest.raises(ValueError, match="no module 'nowhere' for 'nowhere.dapo'"):
        cli.resolve("nowhere.dapo")
    with pytest.raises(ValueError, match="gpo.recipes has no 'nonsense'"):
        cli.resolve("gpo.recipes.nonsense.deeper")


def test_a_broken_module_is_another_error(tmp_path, monkeypatch):
    (tmp_path / "broken_recipe.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        cli.resolve("broken_recipe.recipe")


def test_arguments_are_checked():
    assert "kl(coef=0.04" in gpo.describe(cli.make("gpo.recipes.grpo", '{"kl": 0.04}'))
    with pytest.raises(ValueError, match="must be a JSON object such as .*'high=1'"):
        cli.make("gpo.recipes.grpo", "high=1")
    with pytest.raises(ValueError, match="must be a JSON object"):
        cli.make("gpo.recipes.grpo", "[1]")
    with pytest.raises(ValueError, match=r"gpo.recipes.grpo\(low.*hihg"):
        cli.make("gpo.recipes.grpo", '{"hihg": 1}')
    with pytest.raises(ValueError, match="'gpo.recipes' is no function"):
        cli.make("gpo.recipes")


def test_what_is_offered_is_passed_where_it_is_wanted():
    offered = {"digits": 1, "tokenizer": None, "unknown": 3}
    task = cli.make("gpo.tasks.arithmetic.tiny_addition", '{"radix": 3}', **offered)
    assert len(task.length) == 9
    task = cli.make("gpo.tasks.arithmetic.tiny_addition", '{"digits": 2}', digits=1)
    assert len(task.length) == 10_000
    with pytest.raises(ValueError, match="missing a required argument: 'tokenizer'"):
        cli.make("gpo.tasks.arithmetic.addition", "", tokenizer=None)


def test_the_command_goes_on_with_the_run(monkeypatch):
    words = ["/x/python3", "-m", "experiments.addition", "--recipe-args", '{"a": 1}']
    monkeypatch.setattr(sys, "orig_argv", words)
    expected = "python -m experiments.addition --recipe-args '{\"a\": 1}' --resume"
    assert train.command() == expected
    monkeypatch.setattr(sys, "orig_argv", [*words, "--resume"])
    assert train.command() == expected
