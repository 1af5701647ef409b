"""Checks of what users hand in: at trace time, naming the value and the cure."""

import jax.numpy as jnp
from jax import core


def require(condition: bool, message: str) -> None:
    """Raises ``ValueError(message)`` unless the (static) condition holds."""
    if not condition:
        raise ValueError(message)


def same_shape(**arrays) -> None:
    """Raises unless all named arrays have one shape; the error lists the shapes."""
    shapes = {name: tuple(a.shape) for name, a in arrays.items()}
    require(
        len(set(shapes.values())) <= 1,
        f"these arrays must have one shape, received {shapes}",
    )


def rank(name: str, value, *ranks: int) -> None:
    """Raises unless ``value`` is an array of one of the given ranks."""
    require(
        jnp.ndim(value) in ranks,
        f"{name} must have rank {' or '.join(map(str, ranks))}, "
        f"received shape {jnp.shape(value)}",
    )


def fraction(name: str, value) -> None:
    """Raises unless a concrete number lies in [0, 1]; traced values pass."""
    bounded(name, value, 0, 1)


def bounded(name: str, value, low=None, high=None) -> None:
    """Raises unless ``low <= value <= high`` for a concrete number; traced pass."""
    if isinstance(value, core.Tracer):
        return
    above = low is None or value >= low
    below = high is None or value <= high
    interval = f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"
    require(above and below, f"{name} must lie in {interval}, received {value}")
