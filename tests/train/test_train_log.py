"""Files of a run folder, and what its lines and pictures say."""

import errno
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
import train_cases as cases

from gpo.train import curves, log, screen, track


def test_json_has_no_nan():
    row = {
        "a": jnp.float32("inf"),
        "b": [np.int64(3), float("nan")],
        "c": {"d": np.array([True, False])},
        "e": "text",
    }
    cleaned = log.clean(row)
    assert cleaned == {
        "a": None,
        "b": [3, None],
        "c": {"d": [True, False]},
        "e": "text",
    }
    assert "NaN" not in json.dumps(cleaned)


def test_rows_after_the_restored_step_go(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = log.Lines(path)
    for step in range(5):
        lines.write({"step": step, "x": "é"})
    with path.open("a") as file:
        file.write('{"step": 5')
    assert [r["step"] for r in log.read(path)] == [0, 1, 2, 3, 4]
    again = log.Lines(path, last=2)
    again.write({"step": 3, "x": "new"})
    assert [r["x"] for r in log.read(path)] == ["é", "é", "é", "new"]
    log.Lines(path).write({"step": 1})
    assert log.read(path) == [{"step": 1}]
    assert log.read(tmp_path / "none.jsonl") == []


def test_rows_that_a_full_disk_refused_come_later(tmp_path, monkeypatch):
    lines = log.Lines(tmp_path / "m.jsonl")
    lines.write({"step": 1})
    opened = pathlib.Path.open

    def full(path, mode="r", *args, **kwargs):
        file = opened(path, mode, *args, **kwargs)
        if path == lines.path and mode == "r+b":
            with file:
                file.seek(0, 2)
                file.write(b'{"st')  # a part of it fits
            raise OSError(errno.ENOSPC, "No space left on device")
        return file

    monkeypatch.setattr(pathlib.Path, "open", full)
    for step in (2, 3):
        with pytest.raises(OSError, match="No space left"):
            lines.write({"step": step})
    monkeypatch.undo()
    lines.write({"step": 4})
    assert [r["step"] for r in log.read(lines.path)] == [1, 2, 3, 4]


def test_rollouts_are_of_a_group_with_a_signal():
    rows = log.rollouts(cases.fake_batch(), cases.TASK, count=8)
    assert [r["completion"] for r in rows] == ["456", ""]
    assert [r["reward"] for r in rows] == [0.0, 1.0]
    token = cases.fake_batch().replace(advantage=jnp.ones((4, 3)) * 2)
    assert log.rollouts(token, cases.TASK, count=1)[0]["advantage"] == 2.0


def test_markdown_survives_any_text():
    row = {"prompt": "a|b\n`c`", "completion": "", "reward": 1, "advantage": None}
    shown = log.markdown([{"step": 3, "rollouts": [row | {"logp": -0.5}]}])
    assert "| `a\\|b 'c'` |  | 1.000 |  | -0.500 |" in shown
    assert log.markdown([]) == "# Rollouts\n"


def test_bfloat16_columns_can_be_read_back(tmp_path):
    batch = cases.fake_batch(other=jnp.ones(4, jnp.bfloat16))
    path = log.save_rows(batch, cases.TASK, tmp_path / "x" / "rows")
    assert np.load(path.with_suffix(".npz"))["extras.other"].dtype == np.float32
    assert "0 of 4 rows" in path.read_text()


@pytest.mark.parametrize("steps", [0, 1, 200])
def test_curves_are_drawn_from_any_number_of_steps(tmp_path, steps):
    rows = [{"step": 0, "eval/greedy": 0.5, "eval/pass@8": 0.7}]
    rows += [
        {"step": n, "reward": n / 200, "entropy": None, "kl_ref": 0.1, "length": 3}
        for n in range(1, steps + 1)
    ]
    curves.plot(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_figures_that_are_missing_or_not_finite():
    assert screen.figures({"entropy": None, "outside": 0.25}) == (
        "entropy nan  outside 25.0%"
    )


def test_tables_show_text_as_it_is():
    console = cases.screen()
    row = {"prompt": "[red]a\nb[/red]", "completion": "x" * 500, "reward": 1.0}
    screen.Screen(3, console=console).table(
        [row | {"advantage": 0.5, "logp": -1.0}], "rollouts"
    )
    shown = console.file.getvalue()
    assert "[red]a b[/red]" in shown
    assert "…" in shown
    assert "0.50" in shown


def test_trackers_name_their_extra(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(track.importlib, "import_module", missing)
    for make in (lambda: track.tensorboard(tmp_path), lambda: track.wandb(project="x")):
        with pytest.raises(ValueError, match=r"pip install 'gpo\[track\]'"):
            make()
