"""Learning curves of a run as a picture."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure

# title, and the metrics drawn in it with their names in the legend
PANELS = (
    ("reward", {"reward": "sampled"}),
    ("groups without signal", {"no_signal": "share"}),
    ("entropy (nats)", {"entropy": "policy"}),
    ("KL (nats)", {"kl_ref": "to the start", "kl_old": "of the update"}),
    ("largest ratio", {"ratio_max": "max"}),
    ("ratios outside [0.8, 1.28] (share)", {"outside": "share"}),
    ("gradient norm", {"grad_norm": "norm"}),
    ("tokens of a rollout", {"length": "mean"}),
)
# figures of an evaluation that are shares of its problems
_SOLVED = ("eval/greedy", "eval/pass@", "eval/maj@")


def plot(rows: Sequence[Mapping], path: str | pathlib.Path) -> None:
    """Draws the metrics of a run against the step, with its evaluations.

    Args:
      rows: of ``metrics.jsonl``.
      path: of the PNG.

    Reference: library word.
    """
    made = figure.Figure(figsize=(13, 9), layout="constrained")
    solved, *others = made.subplots(3, 3).flat
    for name in sorted({n for row in rows for n in row if n.startswith(_SOLVED)}):
        x, y = _series(rows, name)
        solved.plot(x, y, "o--", markersize=4, label=name.removeprefix("eval/"))
    _finish(solved, "share of held-out problems solved")
    for axes, (title, names) in zip(others, PANELS, strict=True):
        for name, label in names.items():
            _curve(axes, rows, name, label)
        _finish(axes, title)
    made.savefig(path, dpi=100)


def _series(rows, name):
    found = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(found, float).reshape(-1, 2).T


def _curve(axes, rows, name: str, label: str) -> None:
    """The metric, faint below its running mean where there are many steps."""
    x, y = _series(rows, name)
    width = max(1, len(x) // 20)
    if width == 1:
        axes.plot(x, y, label=label)
        return
    (line,) = axes.plot(x, y, alpha=0.3)
    smooth = np.convolve(y, np.ones(width) / width, "valid")
    axes.plot(x[width - 1 :], smooth, color=line.get_color(), label=label)


def _finish(axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.ticklabel_format(axis="y", useOffset=False)
    if title.startswith(("share", "groups")):
        axes.set_ylim(-0.03, 1.03)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize="small")
