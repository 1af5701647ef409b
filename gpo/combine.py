"""Six combinators; a seventh must delete code."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part
from gpo.batch import spread


def _fold(key, index):
    return None if key is None else jax.random.fold_in(key, index)


def _sequence(transforms) -> Transform:
    def init(value):
        return tuple(t.init(value) for t in transforms)

    def update(value, state, batch, key):
        states = []
        for i, (t, s) in enumerate(zip(transforms, state, strict=True)):
            value, s = t.update(value, s, batch, _fold(key, i))
            states.append(s)
        return value, tuple(states)

    return Transform(init, update)


@part
def chain(*transforms: Transform) -> Transform:
    """Applies transforms one after the other: ``y = fₙ(… f₁(x))``.

    Every ``init`` sees the first value; parts of one chain keep its shape or read only
    the leading axis. Element i draws from ``fold_in(key, i)``.

    Reference: `optax.chain`.
    """
    return _sequence(transforms)


@part
def named_chain(**transforms: Transform) -> Transform:
    """A `chain` whose states are a dict by name, so that one part's state can be found.

    Reference: `optax.named_chain`.
    """
    inner = _sequence(tuple(transforms.values()))
    names = tuple(transforms)

    def update(value, state, batch, key):
        ordered = tuple(state[n] for n in names)
        value, new = inner.update(value, ordered, batch, key)
        return value, dict(zip(names, new, strict=True))

    init = inner.init
    return Transform(lambda value: dict(zip(names, init(value), strict=True)), update)


@part
def weighted_sum(*terms: tuple[float, Transform]) -> Transform:
    """``y = Σᵢ wᵢ fᵢ(x)``: every transform sees the same value.

    Reference: library word.
    """
    checks.require(bool(terms), "weighted_sum needs at least one (weight, transform)")

    def init(value):
        return tuple(t.init(value) for _, t in terms)

    def update(value, state, batch, key):
        outs = [
            t.update(value, s, batch, _fold(key, i))
            for i, ((_, t), s) in enumerate(zip(terms, state, strict=True))
        ]
        values, states = zip(*outs, strict=True)
        weights = [w for w, _ in terms]
        return sum(w * v for w, v in zip(weights, values, strict=True)), tuple(states)

    return Transform(init, update)


@part
def where(condition: Callable, then: Transform, otherwise: Transform) -> Transform:
    """``y = then(x)`` where ``condition(value, batch)`` holds, else ``otherwise(x)``.

    The condition returns a boolean scalar or (B,) or value-shaped array; both branches
    run, and both keep state.

    Reference: library word.
    """

    def init(value):
        return then.init(value), otherwise.init(value)

    def update(value, state, batch, key):
        chosen = jnp.asarray(condition(value, batch))
        a, s0 = then.update(value, state[0], batch, _fold(key, 0))
        b, s1 = otherwise.update(value, state[1], batch, _fold(key, 1))

        def pick(x, y):
            return jnp.where(spread(chosen, x.shape) if chosen.ndim else chosen, x, y)

        return jax.tree.map(pick, a, b), (s0, s1)

    return Transform(init, update)


@part
def per_column(transform: Transform) -> Transform:
    """Applies a (B,) transform to each column of (B, K): ``y[:, k] = f(x[:, k])``.

    Each column has its own state and its own key.

    Reference: library word; GDPO-style decoupled normalisation needs it.
    """

    def column(value):
        return jax.ShapeDtypeStruct(value.shape[:1], value.dtype)

    def init(value):
        checks.require(
            len(value.shape) == 2,
            f"per_column takes rewards of shape (B, K), received {value.shape}",
        )
        given = not isinstance(value, jax.ShapeDtypeStruct)
        columns = range(value.shape[1])
        return tuple(
            transform.init(value[:, k] if given else column(value)) for k in columns
        )

    def update(value, state, batch, key):
        outs = [
            transform.update(value[:, k], s, batch, _fold(key, k))
            for k, s in enumerate(state)
        ]
        values, states = zip(*outs, strict=True)
        return jnp.stack(values, axis=1), states

    return Transform(init, update)


@part
def scheduled(factory: Callable[..., Transform], **schedules: Callable) -> Transform:
    """Builds ``factory(**hyper)`` anew each step from schedules of the step count.

    ``scheduled(advantage.temper, tau=optax.linear_schedule(1., .1, 100))``. The count
    of updates is the state; hyper-parameters reach the factory as traced scalars.

    Reference: `optax.inject_hyperparams`.
    """

    def build(count):
        return factory(**{name: f(count) for name, f in schedules.items()})

    def init(value):
        count = jnp.zeros((), jnp.int32)
        return {"count": count, "inner": build(count).init(value)}

    def update(value, state, batch, key):
        count = state["count"]
        value, inner = build(count).update(value, state["inner"], batch, key)
        return value, {"count": count + 1, "inner": inner}

    return Transform(init, update)
