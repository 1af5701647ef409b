"""`fit`: the loop on the host around a compiled step."""

import dataclasses
import pathlib
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from gpo import checks
from gpo.batch import Batch
from gpo.tasks.base import Task
from gpo.train import checkpoint, curves, hosts, log, screen, sharding
from gpo.train.state import TrainState
from gpo.train.step import Step
from gpo.train.track import Tracker


class Interrupt:
    """Turns Ctrl-C and SIGTERM into a wish to stop, while it is entered.

    The second Ctrl-C interrupts at once. Outside the main thread signals stay as they
    are, since Python does not let other threads handle them.
    """

    def __init__(self, tell: Callable[[str], None]):
        self.wished, self._tell, self._before = False, tell, {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for one in (signal.SIGINT, signal.SIGTERM):
                self._before[one] = signal.signal(one, self._handle)
        return self

    def __exit__(self, *error):
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _handle(self, number, frame):
        if self.wished:
            raise KeyboardInterrupt
        self.wished = True
        self._tell("stopping after this step (Ctrl-C again: at once, without saving)")


def fit(
    step: Step,
    state: TrainState,
    *,
    steps: int,
    folder: str | pathlib.Path,
    task: Task,
    about: Mapping,
    resume: bool = False,
    save_every: int = 20,
    keep: int = 2,
    show_every: int = 5,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    evaluate_every: int = 0,
    patience: int = 3,
    trackers: Sequence[Tracker] = (),
    again: str = "",
    console=None,
) -> TrainState:
    """Trains up to a step, and keeps in a folder what a run leaves behind.

    ==================  ================================================================
    metrics.jsonl       one row a step; ``eval/...`` where it was evaluated
    samples.jsonl, .md  rollouts with reward and advantage, every ``show_every`` steps
    curves.png          drawn with each checkpoint and at the end
    config.json         ``about``: settings, recipe, model, data, versions
    checkpoints/        the latest ``keep`` states
    nonfinite/          the last rows of a run that was stopped for its numbers
    ==================  ================================================================

    Ctrl-C and SIGTERM finish the step, save, and say how to go on: the state then has
    fewer than ``steps`` steps.

    Args:
      step: from `gpo.train.make_step`.
      state: from its ``init``; with ``resume`` it only says how to place the saved one.
      steps: the step to train up to, counted from the start of the run.
      folder: of the run.
      task: whose ``decode`` makes text for the tables.
      about: what the run is (`gpo.train.about`).
      resume: go on from the last complete checkpoint, or begin where there is none.
      save_every: steps between checkpoints.
      keep: checkpoints that stay.
      show_every: steps between tables of rollouts.
      evaluate: parameters -> figures, called before the first and after the last step.
      evaluate_every: steps between further evaluations; 0: none.
      patience: non-finite updates in a row after which the run stops.
      trackers: called with each step's metrics (`gpo.train.track`).
      again: the command that resumes the run, for the message.
      console: a rich console; default standard output.

    Returns:
      The state after the last step.

    Raises:
      ValueError: the folder holds a run and ``resume`` is False, or it holds another.
      FloatingPointError: ``patience`` updates in a row were not finite; the rows are
        saved, and so is the state.
      SaveError: the last checkpoint could not be written; the error's ``state`` has
        the state.

    Reference: library word.
    """
    folder = pathlib.Path(folder)
    # together, before the first process makes it
    there = hosts.any_of((folder / "metrics.jsonl").exists())
    checks.require(
        resume or not there,
        f"{folder} already holds a run: pass resume=True (--resume) to go on with it, "
        "or choose another folder (--folder)",
    )
    folder.mkdir(parents=True, exist_ok=True)
    saved = checkpoint.Checkpoints(folder / "checkpoints", about, keep)
    placed = checkpoint.structure(state)
    if saved.latest is None:
        # restored arrays are committed to their devices; committing these as well gives
        # one program for both, which the next process finds in its cache
        state = sharding.put(state, jax.tree.map(lambda x: x.sharding, placed))
    else:
        del state  # two states may not fit
        state = saved.restore(placed)
    begun = int(state.step)
    shown = console if hosts.is_first() else screen.consoles.Console(quiet=True)
    run = _Run(
        folder, task, saved, begun, steps, screen.Screen(steps, begun, shown),
        save_every, show_every, evaluate, evaluate_every, patience, trackers,
    )  # fmt: skip
    run.settings(about, resume)
    with run.screen, Interrupt(run.screen.note) as interrupt:
        state = run.train(step, state, interrupt)
        run.finish(state)
    if int(state.step) < steps:
        how = again or f"fit(..., folder={str(folder)!r}, resume=True)"
        run.screen.note(f"stopped at step {state.step}, saved. Go on with:\n  {how}")
    return state


@dataclasses.dataclass
class _Run:
    """What the loop writes and shows; only the first process does either."""

    folder: pathlib.Path
    task: Task
    saved: checkpoint.Checkpoints
    begun: int
    steps: int
    screen: screen.Screen
    save_every: int
    show_every: int
    evaluate: Callable[[Any], Mapping[str, float]] | None
    evaluate_every: int
    patience: int
    trackers: Sequence[Tracker]

    def __post_init__(self):
        self.first, self.failures = hosts.is_first(), _failures(self.task)
        self.anew = self.saved.latest is None
        last = None if self.anew else self.begun
        self.lines = {
            name: log.Lines(self.folder / f"{name}.jsonl", last)
            for name in (("metrics", "samples") if self.first else ())
        }

    def settings(self, about, resume) -> None:
        """Says where a run goes on, and keeps what it is."""
        if resume and self.anew:
            self.screen.note(f"no complete checkpoint in {self.folder}: starting anew")
        if not self.anew:
            self.screen.note(f"going on from step {self.begun} in {self.folder}")
            names = ("config", "versions")
            for line in checkpoint.differences(self.saved.read_about(), about, names):
                self.screen.note(f"note: {line}")
        self.write(lambda: log.write_json(self.folder / "config.json", about))

    def write(self, action: Callable[[], Any]) -> None:
        """Runs what writes; a full disk is told, and does not end the training."""
        if not self.first:
            return
        try:
            action()
        except OSError as error:
            self.screen.note(f"could not write into the run folder: {error}")

    def train(self, step: Step, state: TrainState, interrupt: Interrupt) -> TrainState:
        done = self.begun
        if self.anew and self.evaluate is not None:
            found = {"step": done, **self.evaluated(state)}
            self.write(lambda: self.lines["metrics"].write(found))
        while done < self.steps and not hosts.any_of(interrupt.wished):
            if done == self.begun:
                self.screen.compiling()
            start = time.perf_counter()
            state, batch, metrics = step.step(state)
            row = hosts.read(dict(metrics))  # waits for the step
            done += 1
            self.finished(state, batch, row, done, time.perf_counter() - start)
        return state

    def finished(self, state, batch: Batch, metrics, done: int, seconds: float) -> None:
        """Logs, shows, evaluates and saves after a step, as often as each is due."""
        sampled = metrics.get("tokens")  # a step of one's own may not count them
        tokens = int(hosts.read(batch["length"]).sum()) if sampled is None else sampled
        row = {"step": done, "seconds": seconds, "tokens_per_second": tokens / seconds}
        row |= log.clean(metrics)
        failures = _failures(self.task) - self.failures
        if failures:
            row["verifier_errors"] = failures
            self.failures += failures
            self.screen.note(
                f"step {done}: {failures} rows not scored: {_last(self.task)}"
            )
        if self.due(self.evaluate_every, done) or done == self.steps:
            row |= self.evaluated(state)
        self.screen.step(row)
        self.write(lambda: self.lines["metrics"].write(row))
        for track in self.trackers if self.first else ():
            track(done, row)
        if self.due(self.show_every, done) or done == self.begun + 1:
            self.show(batch, done)
        self.check_finite(state, batch, row, done)
        self.attempt(self.saved.check)
        if self.due(self.save_every, done) and done < self.steps:
            self.save(state)

    def due(self, every: int, done: int) -> bool:
        return every > 0 and done % every == 0

    def evaluated(self, state) -> dict[str, float]:
        """The figures of the evaluation, named ``eval/...``."""
        if self.evaluate is None:
            return {}
        self.screen.note("evaluating ...")
        start = time.perf_counter()
        found = self.evaluate(state.params)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
        seconds = time.perf_counter() - start
        self.screen.note(f"evaluated in {seconds:.0f} s: {shown}")
        return {f"eval/{name}": value for name, value in found.items()}

    def show(self, batch: Batch, done: int) -> None:
        rows = log.rollouts(batch, self.task)
        self.screen.table(rows, f"rollouts of step {done}")
        self.write(
            lambda: self.lines["samples"].write({"step": done, "rollouts": rows})
        )

    def check_finite(self, state, batch: Batch, row, done: int) -> None:
        skipped = row.get("skipped") or 0
        if not skipped:
            return
        self.screen.note(f"step {done}: the update was not finite and was skipped")
        if skipped < self.patience:
            return
        name = f"nonfinite/step_{done:06}"
        rows = hosts.read(batch)
        self.write(lambda: log.save_rows(rows, self.task, self.folder / name))
        self.finish(state)
        raise FloatingPointError(
            f"{skipped} updates in a row were not finite (loss {row.get('loss')}, "
            f"gradient norm {row.get('grad_norm')}; None is NaN or inf). The rows of "
            f"step {done} are in {self.folder / name}.npz and .txt. Parameters are as "
            "before these updates and saved: look for rewards, advantages or log-probs "
            "that are not finite, or lower the learning rate, then resume"
        )

    def save(self, state) -> None:
        """Begins a checkpoint and draws; a failure is told, and tried again later."""
        self.attempt(lambda: self.saved.save(state))
        self.draw()

    def attempt(self, action: Callable[[], Any]) -> None:
        """Runs a part of a save that may fail without an end to the training."""
        try:
            action()
        except checkpoint.SaveError as error:
            self.screen.note(f"{error}. Training goes on")

    def draw(self) -> None:
        def drawn():
            rows = log.read(self.folder / "metrics.jsonl")
            curves.plot(rows, self.folder / "curves.png")
            text = log.markdown(log.read(self.folder / "samples.jsonl"))
            (self.folder / "samples.md").write_text(text)

        self.write(drawn)

    def finish(self, state) -> None:
        """The last checkpoint must succeed; an earlier one may have failed."""
        self.attempt(self.saved.wait)
        if self.failures and hasattr(self.task.score, "errors"):
            self.screen.note(str(self.task.score.errors))  # type: ignore[attr-defined]
        self.draw()
        try:
            self.saved.save(state)
            self.saved.close()
        except checkpoint.SaveError as error:
            error.state = state
            raise


def _failures(task: Task) -> int:
    """Failures of the task's verifier so far; 0 for scores on the device."""
    errors = getattr(task.score, "errors", None)
    return 0 if errors is None else sum(errors.counts.values())


def _last(task: Task) -> str:
    recent = task.score.errors.recent  # type: ignore[attr-defined]
    return f"{recent[-1].kind}: {recent[-1].message}" if recent else ""


def command(flag: str = "--resume") -> str:
    """The command line of this process, with a flag that goes on with its run.

    Reference: library word.
    """
    words = ["python", *sys.orig_argv[1:]]
    return shlex.join(words if flag in words else [*words, flag])
