"""Reading arrays and agreeing, with one process or several."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def read(tree):
    """A tree of arrays as NumPy, whole on every process.

    All processes must call it together where arrays span several of them.

    Reference: library word.
    """

    def one(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return np.asarray(x)
        if x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(one, tree)


def any_of(flag: bool) -> bool:
    """True on every process when it is true on one of them."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def is_first() -> bool:
    """True on the one process that writes and prints."""
    return jax.process_index() == 0
