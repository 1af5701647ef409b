"""A pool of worker processes for Python verifiers, with a time limit for each call."""

import collections
import contextlib
import multiprocessing.connection
import os
import pathlib
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from gpo import checks
from gpo.tasks import verifiers, worker

START_LIMIT = 120.0  # seconds for a worker to import the verifier
Outcome = tuple[str | None, Any]


def setup(fn: Callable) -> dict:
    """What a worker needs to load ``fn``.

    Raises:
      ValueError: ``fn`` cannot be sent to another process.
    """
    cure = (
        "define it at the top level of a module (use functools.partial for its "
        "settings), or pass workers=0 to run it inside this process"
    )
    try:
        pickled = pickle.dumps(fn)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"cannot send the verifier {fn!r} to a worker: {cure}"
        ) from error
    source = fn if hasattr(fn, "__qualname__") else type(fn)
    own = source.__module__ == verifiers.__name__
    here = pathlib.Path(__file__).parent
    packages = {"gpo": [str(here.parent)], "gpo.tasks": [str(here)]} if own else {}
    main = _main() if b"__main__" in pickled else None
    checks.require(
        main != ("run_path", None),
        f"the verifier {fn!r} lives in an interactive session, which a worker cannot "
        f"import: {cure}",
    )
    return {"path": [*sys.path], "packages": packages, "main": main, "fn": pickled}


def _main() -> tuple[str, str | None]:
    """How to run this process's script again: a function of `runpy`, its argument."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "run_module", spec.name
    path = getattr(main, "__file__", None)
    return "run_path", path and os.path.abspath(path)


class _Worker:
    """One process: starting (no row, not ready), idle (ready), or busy with a row."""

    def __init__(self, setup: dict):
        # a verifier that uses JAX must not take the accelerator's memory
        self.process = subprocess.Popen(
            [sys.executable, "-P", worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            start_new_session=True,  # Ctrl-C is for the training loop alone
        )
        assert self.process.stdin and self.process.stdout
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self.ready = False
        self.send(None, setup, START_LIMIT)

    def send(self, row: int | None, payload, limit: float) -> None:
        self.row, self.limit, self.deadline = row, limit, time.monotonic() + limit
        try:
            pickle.dump(payload, self.requests)
            self.requests.flush()
        except BrokenPipeError:
            self.deadline = 0.0  # it died: reading its answer tells so

    @property
    def idle(self) -> bool:
        return self.ready and self.row is None

    def receive(self, answered: bool) -> Outcome | None:
        """Its answer; a failure, and no more process, where there will be none; None
        while there is still time."""
        late = time.monotonic() >= self.deadline
        if not answered and not late:
            return None
        try:
            if answered:
                return pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError):
            self.stop()
            return worker.DIED, f"the process ended with code {self.process.returncode}"
        self.stop()
        return worker.TIMEOUT, f"no answer within {self.limit:g} s"

    def stop(self) -> None:
        """Ends the process and what it started."""
        if self.process.poll() is None:
            # it may end by itself just now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.answers.close()
        # a request that it will never read may still be in the buffer
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()


def _stop_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().stop()


class Pool:
    """Worker processes that evaluate one verifier, restarted when they are killed.

    Processes are started from a file, never forked, when the first rows arrive; they
    end with this object, at interpreter exit, or when this process dies.

    Args:
      fn: a verifier that can be pickled.
      workers: number of processes.
      timeout: seconds for each call.
    """

    def __init__(self, fn: Callable, workers: int, timeout: float):
        self._setup = setup(fn)
        self._size, self._timeout = workers, timeout
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _stop_all, self._workers)

    def close(self) -> None:
        """Ends the processes; the next rows start new ones."""
        with self._lock:
            _stop_all(self._workers)

    def run(self, requests: Sequence[tuple[str, bytes]]) -> list[Outcome]:
        """Outcomes of ``fn(text, item)`` for pairs of a text and a pickled item."""
        with self._lock:
            return self._run(requests)

    def _run(self, requests):
        # an interrupted call left its rows behind
        for stale in [w for w in self._workers if w.row is not None]:
            self._drop(stale)
        replies: dict[int, Outcome] = {}
        waiting = collections.deque(range(len(requests)))
        broken: Outcome = (None, None)
        while len(replies) < len(requests):
            self._hand_out(requests, waiting, start=broken[0] is None)
            active = [w for w in self._workers if not w.idle]
            if not active:
                break
            left = max(min(w.deadline for w in active) - time.monotonic(), 0)
            pipes = [w.answers.fileno() for w in active]
            answered = multiprocessing.connection.wait(pipes, left)
            for one, pipe in zip(active, pipes, strict=True):
                reply = one.receive(pipe in answered)
                if reply is None:
                    continue
                if one.row is not None:
                    replies[one.row] = reply
                elif reply[0] is not None:
                    broken = (worker.START, reply[1])
                one.ready, one.row = reply[0] in (None, *_HARMLESS), None
                if not one.ready:
                    self._drop(one)
        return [replies.get(row, broken) for row in range(len(requests))]

    def _hand_out(self, requests, waiting, start: bool) -> None:
        """Gives rows to idle workers, after starting as many as rows need."""
        for gone in [
            w for w in self._workers if w.process.poll() is not None and w.idle
        ]:
            self._drop(gone)
        starting = sum(not w.ready for w in self._workers)
        idle = [w for w in self._workers if w.idle]
        missing = min(
            self._size - len(self._workers), len(waiting) - starting - len(idle)
        )
        if start:
            self._workers.extend(_Worker(self._setup) for _ in range(missing))
        for one, row in zip(idle, [*waiting], strict=False):
            one.send(waiting.popleft(), requests[row], self._timeout)

    def _drop(self, one: _Worker) -> None:
        one.stop()
        self._workers.remove(one)


_HARMLESS = (worker.RAISED, worker.NON_FINITE)  # the worker lives on


def in_thread(fn: Callable, text: str, item, timeout: float) -> Outcome:
    """``fn(text, item)`` in a thread of this process, waited for ``timeout`` seconds.

    A call that hangs cannot be interrupted: it is left behind, and runs until the
    interpreter exits.
    """
    box: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(
        target=lambda: box.put(worker.outcome(fn, text, item)), daemon=True
    ).start()
    try:
        return box.get(timeout=timeout)
    except queue.Empty:
        return worker.TIMEOUT, f"no answer within {timeout:g} s; it is still running"
