"""Contract: golden numbers, in float64, and what the loss is made of by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpo
import table
from golden.case import Golden
from gpo.recipe import Recipe, credit, init_states

CASES = [
    pytest.param(g, id=f"{row.name} {g.source} {i}")
    for row in table.TABLE
    for i, g in enumerate(row.golden)
]


def array(x):
    """Floats in 64 bits, integers in 32."""
    x = np.asarray(x)
    return jnp.asarray(x, jnp.int32 if x.dtype.kind == "i" else None)


def run(golden: Golden):
    """(value -> output) of a case."""
    columns = {k: array(v) for k, v in golden.columns.items()}
    part = golden.part
    if isinstance(part, Recipe):
        if golden.value is None:
            return lambda _: advantages(part, columns)
        return lambda logp: gpo.loss(part, logp, **columns)[0]
    if isinstance(part, gpo.Transform):
        return lambda value: gpo.apply(part, value, **columns)
    part = part if hasattr(part, "update") else part(optax_identity())
    batch = gpo.Batch.of(**columns)
    return lambda value: part.update(value, part.init(value), batch=batch)[0]


def optax_identity():
    import optax

    return optax.identity()


def advantages(recipe, columns):
    batch = gpo.Batch.of(**columns)
    rows = jax.ShapeDtypeStruct(batch.reward.shape[:1], batch.reward.dtype)
    states = init_states(
        recipe, reward=batch.reward, advantage=rows, select=batch
    )
    return credit(recipe, states, batch, None)[0].advantage


@pytest.mark.parametrize("golden", CASES)
def test_golden_numbers(golden):
    with jax.enable_x64(True):
        fn = run(golden)
        value = None if golden.value is None else array(golden.value)
        expected = np.asarray(golden.expected, float)
        np.testing.assert_allclose(fn(value), expected, rtol=0, atol=golden.atol)
        np.testing.assert_allclose(
            jax.jit(fn)(value), expected, rtol=0, atol=golden.atol
        )
        if golden.grad is not None:
            grad = jax.grad(lambda v: jnp.sum(fn(v)))(value)
            np.testing.assert_allclose(
                grad, np.asarray(golden.grad, float), rtol=0, atol=golden.atol
            )
