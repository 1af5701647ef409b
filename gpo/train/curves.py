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
    ("ratios outside [0.8, 1.28]", {"outside": "share"}),
    ("gradient norm", {"grad_norm": "norm"}),
    ("tokens of a rollout", {"length": "mean"}),
)


def plot(rows: Sequence[Mapping], path: str | pathlib.Path) -> None:
    """Draws the metrics of a run against the step, with its evaluations.

    Args:
      rows: of ``metrics.jsonl``.
      path: of the PNG.

    Reference: library word.
    """
    made = figure.Figure(figsize=(16, 7), layout="constrained")
    for axes, (title, names) in zip(made.subplots(2, 4).flat, PANELS, strict=True):
        for name, label in names.items():
            _curve(axes, rows, name, label)
        if title == "reward":
            for name in sorted({n for r in rows for n in r if n.startswith("eval/")}):
                if not name.startswith(("eval/length", "eval/unscored")):
                    _points(axes, rows, name)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend(fontsize="small")
    made.savefig(path, dpi=100)


def _series(rows, name):
    found = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(found, float).reshape(-1, 2).T


def _curve(axes, rows, name: str, label: str) -> None:
    x, y = _series(rows, name)
    if not len(x):
        return
    width = max(1, len(x) // 20)
    (line,) = axes.plot(x, y, alpha=1.0 if width == 1 else 0.3, label=label)
    if width > 1:
        smooth = np.convolve(y, np.ones(width) / width, "valid")
        axes.plot(x[width - 1 :], smooth, color=line.get_color())


def _points(axes, rows, name: str) -> None:
    x, y = _series(rows, name)
    axes.plot(x, y, "o--", markersize=4, label=name.removeprefix("eval/"))
