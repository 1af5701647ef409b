"""Contract: the loss and its gradient do not depend on how a batch is split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from contracts import sample
from contracts.subject import case

import gpo
from gpo.recipe import Recipe, credit, surrogate, weigh

PARTS = 4
BATCH = sample.batch()


def finished(row):
    """(objective, its state, batch) as they are just before the gradient."""
    made, batch = row.make(), row.edit(BATCH)
    if isinstance(made, gpo.Auxiliary):
        weight, _ = made.weight.update(
            batch.valid("token").astype(jnp.float32), made.weight.init(0), batch, None
        )
        objective, batch = made.objective, batch.replace(weight=weight)
        return objective, objective.init(batch.logp), batch
    if isinstance(made, Recipe):
        states = case(row.name).subject.init(row.value(batch), batch)
        batch, states = credit(made, states, batch, jax.random.key(0))
        batch, states = weigh(made, states, batch, None)
        return made.objective, states.objective, batch
    takes_ratios = row.name.startswith(("objective.trust", "objective.regulariser"))
    whole = gpo.chain(gpo.objective.ratio.token(), made) if takes_ratios else made
    return whole, whole.init(batch.logp), batch


def slices(batch):
    """The batch in parts of consecutive rows, which may split groups."""
    size = sample.ROWS // PARTS
    for start in range(0, sample.ROWS, size):
        rows = np.arange(start, start + size)
        yield sample.permute(batch, rows).replace(whole=False)


@pytest.mark.parametrize(
    "row", [*table.OBJECTIVES, *table.AUXILIARIES, *table.RECIPES], ids=lambda r: r.name
)
def test_parts_add_up(row):
    objective, state, batch = finished(row)

    def run(part):
        def loss(logp):
            return surrogate(objective, state, part.replace(logp=logp), None)

        return jax.value_and_grad(loss)(part.logp)

    value, gradient = run(batch)
    parts = [run(part) for part in slices(batch)]
    total = sum(float(v) for v, _ in parts)
    np.testing.assert_allclose(total, value, rtol=1e-5, atol=1e-6)
    found = jnp.concatenate([g for _, g in parts])
    np.testing.assert_allclose(found, gradient, rtol=1e-5, atol=1e-7)
    assert np.any(np.asarray(gradient) != 0) or "entropy" in row.name


def coupled(row):
    return "whole" not in row.excused and row not in table.RECIPES


@pytest.mark.parametrize(
    "row", [r for r in table.TABLE if coupled(r)], ids=lambda r: r.name
)
def test_parts_that_couple_rows_refuse_half_a_group(row):
    c = case(row.name)
    value, batch = c.inputs(BATCH)
    state = c.subject.init(value, batch)
    part = batch.replace(whole=False)
    value = part if isinstance(value, gpo.Batch) else value
    with pytest.raises(ValueError, match="microbatch"):
        jax.eval_shape(c.subject.update, value, state, part, jax.random.key(0))


@pytest.mark.parametrize("row", table.OBJECTIVES, ids=lambda r: r.name)
def test_objectives_accept_half_a_group(row):
    c = case(row.name)
    value, batch = c.inputs(BATCH)
    half = batch.replace(whole=False)
    out = jax.eval_shape(
        c.subject.update, value, c.subject.init(value, batch), half, None
    )
    assert out[0].shape == value.shape
