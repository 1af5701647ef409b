"""The one interface: a `Transform` is a pure pair of ``init`` and ``update``."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.batch import Batch

P = ParamSpec("P")


class Label(NamedTuple):
    """How a part was made: its name and its arguments, for people and profiles."""

    name: str
    arguments: dict[str, Any]


class Transform(NamedTuple):
    """A pure map on rollouts with explicit state.

    ======  ===========================================================
    init    ``value -> state``; also takes ShapeDtypeStructs
    update  ``(value, state, batch, key) -> (value, state)``
    label   name and arguments, set by `part`; for `gpo.describe`
    ======  ===========================================================

    State is what the next step needs, never diagnostics.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Batch, Any], tuple[Any, Any]]
    label: Label | None = None


def part(factory: Callable[P, Transform]) -> Callable[P, Transform]:
    """Decorates a function that makes a Transform: remembers its arguments for
    `describe` and puts its updates under `jax.named_scope`."""
    signature = inspect.signature(factory)
    name = _public_name(factory)

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Transform:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        made = factory(*args, **kwargs)
        scoped = jax.named_scope(name)(made.update)
        return Transform(made.init, scoped, Label(name, dict(bound.arguments)))

    return make


def _public_name(factory) -> str:
    """``advantage.zscore``, ``ratio.token``, ``chain``: as users write it."""
    package, *path = str(factory.__module__).split(".")
    if package != "gpo" or path[0] in ("base", "combine"):
        return factory.__name__
    named_by_module = path[0] == "objective" and path[-1] != "score"
    return f"{path[-1 if named_by_module else 0]}.{factory.__name__}"


def stateless(fn: Callable[[Any, Batch], Any]) -> Transform:
    """A transform from ``fn(value, batch) -> value``, without state or randomness."""
    return Transform(
        lambda value: (), lambda value, state, batch, key: (fn(value, batch), state)
    )


def stochastic(fn: Callable[[Any, Batch, Any], Any]) -> Transform:
    """A transform from ``fn(value, batch, key) -> value`` that draws random numbers."""

    def update(value, state, batch, key):
        checks.require(
            key is not None,
            "a stochastic part needs a PRNG key: pass key=jax.random...",
        )
        return fn(value, batch, key), state

    return Transform(lambda value: (), update)


@part
def identity() -> Transform:
    """Returns the value as it came: ``y = x``."""
    return stateless(lambda value, batch: value)


def apply(transform: Transform, value, *, key=None, **columns):
    """Applies a transform to plain arrays, with a fresh state.

    Args:
      transform: any Transform.
      value: what its slot takes, for example rewards (B,) or log-probs (B, T).
      key: PRNG key, for stochastic parts.
      **columns: the columns the part reads (``group=ids``, ``mask=...``,
        ``old_logp=...``); lists and NumPy arrays are converted.

    Returns:
      The transformed value.

    Raises:
      ValueError: a column that the part reads is missing (the error lists those
        present).

    Example:
      >>> import gpo
      >>> r = gpo.apply(gpo.advantage.center(), [1.0, 0.0, 0.0, 1.0], group=[0, 0, 1, 1])
      >>> r.tolist()
      [0.5, -0.5, -0.5, 0.5]

    Reference: library word.
    """
    value = _arrays(value)
    columns = {k: _arrays(v) for k, v in columns.items()}
    if isinstance(value, Batch):
        value = value.replace(**columns)
    batch = value if isinstance(value, Batch) else Batch.of(**columns)
    leaves = [x for x in jax.tree.leaves(value) if jnp.ndim(x) > 0]
    if not batch.columns() and leaves:
        batch = batch.replace(live=jnp.ones(leaves[0].shape[0], bool))
    return transform.update(value, transform.init(value), batch, key)[0]


def _arrays(value):
    plain = isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
    return jnp.asarray(value) if plain else jax.tree.map(jnp.asarray, value)
