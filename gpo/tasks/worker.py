"""Runs verifiers: what a worker process executes, with the standard library only.

`gpo.tasks.pool` starts this file by its path, so that a worker imports neither the
package nor JAX unless the verifier itself does.
"""

import math
import os
import pickle
import queue
import runpy
import sys
import threading
import types

# what can go wrong with a row
RAISED, NON_FINITE, TIMEOUT = "raised", "non-finite", "timeout"
# what can go wrong with a worker
DIED, START = "died", "start"


def outcome(fn, text: str, item) -> tuple[str | None, object]:
    """``(None, value)`` of ``fn(text, item)``, or ``(kind, message)`` where it failed.

    The value is a float, or a list of floats where the verifier returns several. A
    verifier may do anything, so whatever it raises becomes a message: that is what the
    caller counts and reports.
    """
    try:
        value = fn(text, item)
        several = isinstance(value, (list, tuple))
        numbers = [float(v) for v in value] if several else float(value)
    except BaseException as error:  # noqa: BLE001 (sys.exit() in it is a failure too)
        return RAISED, f"{type(error).__name__}: {error}"[:2000]
    if not all(map(math.isfinite, numbers if isinstance(numbers, list) else [numbers])):
        return NON_FINITE, f"returned {value!r}"[:2000]
    return None, numbers


def load(setup: dict):
    """The verifier of a set-up made by `gpo.tasks.pool.setup`."""
    sys.path[:] = setup["path"]
    for name, where in setup["packages"].items():
        # a package without its __init__: gpo's would import JAX for nothing
        package = types.ModuleType(name)
        package.__path__ = where
        sys.modules[name] = package
    if setup["main"] is not None:
        # as multiprocessing does: not "__main__", so that the script's guard holds
        how, what = setup["main"]
        main = types.ModuleType("__mp_main__")
        vars(main).update(getattr(runpy, how)(what, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return pickle.loads(setup["fn"])


def serve(requests, replies) -> None:
    """Answers requests until the parent is gone.

    The first request is a set-up, answered with ``(None, None)`` or with a failure;
    the others are ``(text, pickled item)``. A thread of its own reads the requests, so
    that it notices that the parent is gone even while a verifier hangs.
    """
    inbox: queue.SimpleQueue = queue.SimpleQueue()

    def receive():
        try:
            while True:
                inbox.put(pickle.load(requests))
        finally:
            os._exit(0)

    def send(reply):
        pickle.dump(reply, replies)
        replies.flush()

    threading.Thread(target=receive, daemon=True).start()
    try:
        fn = load(inbox.get())
    except BaseException as error:  # noqa: BLE001 (the parent reports it)
        return send((START, f"{type(error).__name__}: {error}"[:2000]))
    send((None, None))
    while True:
        text, item = inbox.get()
        send(outcome(lambda text, item: fn(text, pickle.loads(item)), text, item))


if __name__ == "__main__":
    # what a verifier prints must not mix with the replies
    answers = os.fdopen(os.dup(1), "wb")
    questions = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(questions, answers)
