"""Trackers: functions ``(step, metrics) -> None`` that `gpo.train.fit` calls each step."""

import importlib
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

Tracker = Callable[[int, Mapping[str, Any]], None]


def _extra(module: str) -> Any:
    """An optional module, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ValueError(
            f"tracking with {package} needs the extra 'track': pip install 'gpo[track]'"
        ) from error


def tensorboard(folder: str | pathlib.Path) -> Tracker:
    """Writes scalars for TensorBoard.

    Args:
      folder: of the event files; show it with ``tensorboard --logdir``.

    Returns:
      A tracker.

    Raises:
      ValueError: the extra ``track`` is not installed.

    Reference: library word.
    """
    writers = _extra("tensorboard.summary.writer.event_file_writer")
    events = _extra("tensorboard.compat.proto.event_pb2")
    summaries = _extra("tensorboard.compat.proto.summary_pb2")
    writer = writers.EventFileWriter(str(folder))

    def track(step, metrics):
        values = [
            summaries.Summary.Value(tag=name, simple_value=float(value))
            for name, value in metrics.items()
            if value is not None
        ]
        summary = summaries.Summary(value=values)
        event = events.Event(wall_time=time.time(), step=step, summary=summary)
        writer.add_event(event)
        writer.flush()

    return track


def wandb(**arguments) -> Tracker:
    """Sends scalars to Weights & Biases.

    Args:
      **arguments: of ``wandb.init``: ``project=..., name=..., config=...``. Pass
        ``id=..., resume="allow"`` so that a continued run is one run there.

    Returns:
      A tracker.

    Raises:
      ValueError: the extra ``track`` is not installed.

    Reference: library word.
    """
    run = _extra("wandb").init(**arguments)

    def track(step, metrics):
        run.log({k: v for k, v in metrics.items() if v is not None}, step=step)

    return track
