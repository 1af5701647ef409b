"""Contract: the golden numbers of every row, jitted and in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import table
from golden.case import Golden

import gpo
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
    part = part if hasattr(part, "update") else part(optax.identity())
    batch = gpo.Batch.of(**columns)
    return lambda value: part.update(value, part.init(value), batch=batch)[0]


def advantages(recipe, columns):
    batch = gpo.Batch.of(**columns)
    rows = jax.ShapeDtypeStruct(batch.reward.shape[:1], batch.reward.dtype)
    states = init_states(recipe, reward=batch.reward, advantage=rows, select=batch)
    return credit(recipe, states, batch, None)[0].advantage


@pytest.mark.parametrize("golden", CASES)
def test_golden_numbers(golden):
    with jax.enable_x64(True):
        fn = run(golden)
        value = None if golden.value is None else array(golden.value)

        def summed(value):
            out = fn(value)
            return sum(jnp.sum(x) for x in jax.tree.leaves(out)), out

        if golden.grad is None:
            out = jax.jit(fn)(value)
        else:
            grad, out = jax.jit(jax.grad(summed, has_aux=True))(value)
            close(grad, golden.grad, golden.atol)
        close(out, golden.expected, golden.atol)


def close(actual, expected, atol):
    expected = np.asarray(expected, float)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
