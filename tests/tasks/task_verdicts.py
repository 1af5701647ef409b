"""Verifiers for the tests, in a module that imports nothing heavy."""

import os
import sys
import time


def verdict(text: str, item) -> float:
    """The length of the text, unless the item asks for trouble."""
    if item == "raise":
        raise RuntimeError("no verdict")
    if item == "hang":
        time.sleep(600)
    if item == "nan":
        return float("nan")
    if item == "exit":
        sys.exit(1)
    if item == "die":
        os._exit(3)
    print("verifiers may print")
    return len(text)


def process(text: str, item) -> int:
    """The process that judges."""
    return os.getpid()


def imports_jax(text: str, item) -> bool:
    return "jax" in sys.modules


def pair(text: str, item) -> tuple[float, bool]:
    return 0.5, text == item


class Unloadable:
    """Can be pickled, but never unpickled."""

    def __reduce__(self):
        return int, ("no number",)

    def __call__(self, text, item):
        return 0.0
