"""The run folder: metrics and rollouts as JSON lines, and rows to look into."""

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gpo.batch import Batch
from gpo.tasks.base import Task
from gpo.train import hosts
from gpo.train.sharding import path_name


def clean(value) -> Any:
    """The value as JSON has it: NumPy scalars as numbers, NaN and inf as null.

    Example:
      >>> clean({"loss": np.float32("nan"), "step": np.int32(3)})
      {'loss': None, 'step': 3}

    Reference: library word.
    """
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return clean(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(path: str | pathlib.Path) -> list[dict]:
    """The rows of a JSON lines file; none where there is no file.

    Reference: library word.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    return [row for _, row in _parsed(path.read_bytes())]


def _parsed(data: bytes):
    """(bytes up to the row's end, row) of each whole line."""
    size = 0
    for line in data.splitlines(keepends=True):
        size += len(line)
        if not line.endswith(b"\n"):
            return  # a kill in the middle of a write
        yield size, json.loads(line)


class Lines:
    """Appends rows to a JSON lines file; what a full disk refused is written later.

    Args:
      path: of the file.
      last: rows after this step are dropped, so that a run that goes on from there
        writes no step twice; None: the file starts empty.

    Rows have a ``step`` and are in order of it.
    """

    def __init__(self, path: str | pathlib.Path, last: int | None = None):
        self.path = pathlib.Path(path)
        self._waiting: list[bytes] = []
        self._size = 0
        if last is None or not self.path.exists():
            self.path.write_bytes(b"")
            return
        for size, row in _parsed(self.path.read_bytes()):
            if row["step"] > last:
                break
            self._size = size
        os.truncate(self.path, self._size)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row.

        Raises:
          OSError: it cannot be written now; it is kept, and written with the next one.

        Reference: library word.
        """
        text = json.dumps(clean(row), allow_nan=False, ensure_ascii=False)
        self._waiting.append(text.encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Writes the rows that wait for space."""
        data = b"".join(self._waiting)
        with self.path.open("r+b") as file:
            file.seek(self._size)
            file.truncate()  # a part of a row that did not fit
            file.write(data)
        self._size += len(data)
        self._waiting.clear()


def write_json(path: str | pathlib.Path, value) -> None:
    """Writes a JSON file that people can read; it is never half there.

    Reference: library word.
    """
    path = pathlib.Path(path)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(clean(value), indent=2, ensure_ascii=False) + "\n")
    beside.replace(path)


def outcome(rows: Sequence[Mapping]) -> dict:
    """What a run did to the figures of its evaluation, and how long it took.

    Args:
      rows: of ``metrics.jsonl``.

    Returns:
      ``before`` and ``after``: figures of the first and the last evaluation; ``steps``;
      ``seconds`` of all steps; ``step``, the median seconds of one.

    Example:
      >>> rows = [{"step": 0, "eval/greedy": 0.1}]
      >>> rows += [{"step": 1, "seconds": 2.0, "eval/greedy": 0.3}]
      >>> found = outcome(rows)
      >>> found["before"], found["after"], found["seconds"]
      ({'greedy': 0.1}, {'greedy': 0.3}, 2.0)

    Reference: library word.
    """
    tested = [_figures(row) for row in rows if _figures(row)] or [{}]
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    return {
        "before": tested[0],
        "after": tested[-1],
        "steps": rows[-1]["step"] if rows else 0,
        "seconds": sum(seconds),
        "step": float(np.median(seconds)) if seconds else 0.0,
    }


def _figures(row: Mapping) -> dict:
    return {n[5:]: v for n, v in row.items() if n.startswith("eval/")}


def rollouts(batch: Batch, task: Task, count: int = 8) -> list[dict]:
    """Up to ``count`` rollouts to look at, of one group, with a signal where there is.

    Args:
      batch: a finished batch.
      task: whose ``decode`` makes text.
      count: most rows.

    Returns:
      Dicts with prompt, completion, reward, advantage, logp (the mean of a token under
      the policy that was trained) and length.

    Reference: library word.
    """
    names = ("tokens", "length", "group", "context", "reward", "advantage", "logp")
    found = hosts.read({n: batch[n] for n in (*names, "mask")})
    contexts = hosts.read((batch.plan.contexts, batch.plan.length))  # type: ignore[union-attr]
    spread = {
        g: np.ptp(found["reward"][found["group"] == g]) for g in set(found["group"])
    }
    best = max(spread, key=lambda g: (spread[g], -g))
    rows = np.flatnonzero(found["group"] == best)[:count]
    return [_rollout(found, contexts, task, row) for row in rows]


def _rollout(found, contexts, task: Task, row: int) -> dict:
    ids, size = (x[found["context"][row]] for x in contexts)
    mask = found["mask"][row].astype(bool)
    return {
        "prompt": task.decode(ids[:size].tolist()),
        "completion": task.decode(
            found["tokens"][row, : found["length"][row]].tolist()
        ),
        "reward": float(found["reward"][row]),
        "advantage": _mean(found["advantage"][row], mask),
        "logp": _mean(found["logp"][row], mask),
        "length": int(found["length"][row]),
    }


def _mean(x, mask) -> float:
    chosen = x if x.ndim == 0 else x[mask]
    return float(np.mean(chosen)) if chosen.size else 0.0


def markdown(rows: Sequence[Mapping], count: int = 10) -> str:
    """The latest ``count`` tables of rollouts, newest first, as Markdown.

    Args:
      rows: of ``samples.jsonl``: step and rollouts.
      count: most steps.

    Reference: library word.
    """
    head = (
        "| prompt | completion | reward | advantage | logp |\n|---|---|---:|---:|---:|"
    )
    parts = ["# Rollouts"]
    for row in rows[: -count - 1 : -1]:
        lines = [
            f"| {_cell(r['prompt'])} | {_cell(r['completion'])} | {_number(r['reward'])} "
            f"| {_number(r['advantage'])} | {_number(r['logp'])} |"
            for r in row["rollouts"]
        ]
        parts.append(f"## Step {row['step']}\n\n{head}\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    shown = one_line(text).replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown else ""


def one_line(text: str) -> str:
    """Text with its line breaks as spaces, for tables."""
    return " ".join(text.split())


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.3f}"


def save_rows(batch: Batch, task: Task, path: pathlib.Path) -> pathlib.Path:
    """Writes a batch to look into: ``path.npz`` with all columns, ``path.txt`` to read.

    Rows with a value that is not finite come first in the text, and have True in the
    column ``offending`` of the file.

    Args:
      batch: of a step whose update was not finite.
      task: whose ``decode`` makes text.
      path: without an ending.

    Returns:
      The path of the text.

    Reference: library word.
    """
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    columns = {path_name(p): _plain(x) for p, x in leaves}
    columns = {name.replace("/", "."): x for name, x in columns.items()}
    size = batch.rows
    wrong = {
        name: np.asarray(~np.isfinite(x).reshape(size, -1).all(1))
        for name, x in columns.items()
        if x.dtype.kind == "f" and x.shape[:1] == (size,)
    }
    offending = np.zeros(size, bool)
    for rows in wrong.values():
        offending |= rows
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path.with_suffix(".npz"), offending=offending, **columns)  # type: ignore[arg-type]
    first = f"{offending.sum()} of {size} rows have values that are not finite"
    lines = [f"loss {columns.get('extras.loss')}: {first}"]
    for row in np.argsort(~offending, kind="stable"):
        bad = [name for name, rows in wrong.items() if rows[row]]
        one = _rollout_text(columns, task, row)
        lines.append(f"row {row}: not finite: {', '.join(bad) or 'nothing'}; {one}")
    text = path.with_suffix(".txt")
    text.write_text("\n".join(lines) + "\n")
    return text


def _plain(x) -> np.ndarray:
    """As NumPy reads it back: bfloat16 becomes float32, which holds all its values."""
    x = hosts.read(x)
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def _rollout_text(columns, task: Task, row: int) -> str:
    context = columns["plan.context"][row]
    size = columns["plan.length"][context]
    prompt = task.decode(columns["plan.contexts"][context, :size].tolist())
    answer = task.decode(columns["tokens"][row, : columns["length"][row]].tolist())
    reward = columns["reward"][row]
    return f"reward {reward}, prompt {prompt!r}, completion {answer!r}"
