"""What people see while a run goes on: a bar and tables, or plain lines."""

import statistics
import time
from collections.abc import Mapping, Sequence

from rich import console as consoles
from rich import live, progress, table, text

from gpo.train import log

# name, metric and format of the figures beside the bar
FIGURES = (
    ("reward", "reward", "{:.3f}"),
    ("no signal", "no_signal", "{:.0%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("KL to start", "kl_ref", "{:.4f}"),
    ("ratio max", "ratio_max", "{:.2f}"),
    ("outside", "outside", "{:.1%}"),
)


def figures(row: Mapping) -> str:
    """The figures of a step in one line.

    Example:
      >>> figures({"reward": 0.5, "no_signal": 0.25, "loss": 1.0})
      'reward 0.500  no signal 25%'

    Reference: library word.
    """
    shown = [
        f"{name} {'nan' if row[key] is None else form.format(row[key])}"
        for name, key, form in FIGURES
        if key in row
    ]
    return "  ".join(shown)


def duration(seconds: float) -> str:
    """``m:ss`` or ``h:mm:ss``.

    Example:
      >>> duration(75.2), duration(3700)
      ('1:15', '1:01:40')

    Reference: library word.
    """
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def outcome(found: Mapping) -> str:
    """`gpo.train.log.outcome` as a table: the figures before and after.

    Reference: library word.
    """
    lines = [f"{'':12}before   after"]
    for name, after in found["after"].items():
        before = found["before"].get(name, float("nan"))
        lines.append(f"{name:12}{before:6.3f}  {after:6.3f}")
    lines.append(f"{found['steps']} steps in {found['seconds']:.0f} s, ")
    return "\n".join(lines) + f"{found['step']:.2f} s a step"


class Screen:
    """Shows a run: a bar with figures on a terminal, a line a step elsewhere.

    Args:
      steps: the last step.
      step: the step that it starts from.
      console: where; default standard output.
      every: seconds between two plain lines at least.
    """

    def __init__(self, steps: int, step: int = 0, console=None, every: float = 1.0):
        self.console = consoles.Console(highlight=False) if console is None else console
        self._steps, self._seconds, self._every = steps, [], every
        self._shown = -every
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(None),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[more]}"),
            console=self.console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=steps, completed=step, more="")
        self._line = text.Text("")
        self._live = None
        if self.console.is_terminal:
            self._live = live.Live(
                get_renderable=self._shape, console=self.console, refresh_per_second=4
            )

    def _shape(self):
        return consoles.Group(self._bar, self._line)

    def __enter__(self):
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error):
        if self._live is not None:
            self._live.stop()

    def note(self, line: str) -> None:
        """A line that stays."""
        self.console.print(text.Text(line), soft_wrap=True)

    def compiling(self) -> None:
        """Says why the first step takes long."""
        self._bar.update(self._task, description="compiling")
        if self._live is None:
            self.note("compiling the training step; it happens once")

    def step(self, row: Mapping) -> None:
        """Shows the metrics of a finished step."""
        first = not self._seconds
        self._seconds.append(row["seconds"])
        recent = self._seconds[1:][-10:]
        left = (
            (self._steps - row["step"]) * statistics.median(recent) if recent else None
        )
        more = f"{row['tokens_per_second']:.0f} tok/s"
        more += "" if left is None else f"  {duration(left)} left"
        if first:
            self.note(f"first step, with compiling: {row['seconds']:.1f} s")
        self._line = text.Text(figures(row))
        self._bar.update(
            self._task, description="training", completed=row["step"], more=more
        )
        now, last = time.monotonic(), row["step"] >= self._steps
        if self._live is None and (last or now - self._shown >= self._every):
            self._shown = now
            self.note(f"step {row['step']}/{self._steps}  {figures(row)}  {more}")

    def table(self, rows: Sequence[Mapping], title: str) -> None:
        """Shows rollouts with their reward and advantage."""
        made = table.Table(title=title, title_justify="left", expand=True)
        for name in ("prompt", "completion"):
            made.add_column(name, overflow="fold", ratio=1)
        for name in ("reward", "advantage", "logp"):
            made.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            numbers = [f"{row[n]:.2f}" for n in ("reward", "advantage", "logp")]
            shown = [
                text.Text(_clip(log.one_line(row[n]))) for n in ("prompt", "completion")
            ]
            made.add_row(*shown, *numbers)
        self.console.print(made)


def _clip(line: str, limit: int = 120) -> str:
    """The end of a long text: where a prompt asks and a completion answers."""
    return line if len(line) <= limit else "… " + line[-limit:]
