"""Row selection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts import sample

import gpo
from gpo.select.rows import take

BATCH = sample.batch()


def test_keep_rows_takes_the_largest_advantages_in_their_order():
    kept = gpo.apply(gpo.select.keep_rows(7), BATCH)
    size = np.where(BATCH.valid("rollout"), np.abs(BATCH.advantage), -1)
    expected = np.sort(np.argsort(-size)[:7])
    assert kept["row"].tolist() == expected.tolist()
    np.testing.assert_array_equal(kept.tokens, BATCH.tokens[expected])
    np.testing.assert_array_equal(kept["ref_logp"], BATCH["ref_logp"][expected])
    np.testing.assert_array_equal(kept.plan.contexts, BATCH.plan.contexts)
    assert kept.plan.width is None


def test_keep_rows_fills_up_with_rows_that_are_not_live():
    few = BATCH.replace(live=BATCH["row"] == 5)
    kept = gpo.apply(gpo.select.keep_rows(3), few)
    assert kept["row"].tolist() == [0, 1, 5]
    assert kept.live.tolist() == [False, False, True]


def test_keep_rows_with_ties_and_token_advantages():
    batch = gpo.Batch.of(advantage=jnp.asarray([[0.0, 2], [3, 0], [0, -3], [1, 1]]))
    kept = gpo.apply(gpo.select.keep_rows(2), batch)
    assert kept.advantage.tolist() == [[3, 0], [0, -3]]
    tied = gpo.Batch.of(advantage=jnp.asarray([1.0, -1.0, 1.0]), row=jnp.arange(3))
    assert gpo.apply(gpo.select.keep_rows(2), tied)["row"].tolist() == [0, 1]


def test_keep_rows_with_another_priority():
    part = gpo.select.keep_rows(2, priority=lambda batch: batch["length"] * 1.0)
    batch = gpo.Batch.of(length=jnp.asarray([3.0, 1.0, 2.0]), row=jnp.arange(3))
    assert gpo.apply(part, batch)["row"].tolist() == [0, 2]


def test_keep_rows_needs_enough_rows():
    with pytest.raises(ValueError, match=r"keep_rows\(17\) got only 16 rows"):
        gpo.apply(gpo.select.keep_rows(17), BATCH)


def test_the_kept_rows_are_learnt_from():
    """Selection in a recipe: the loss is that of the kept rows alone."""
    recipe = gpo.recipes.dapo()._replace(select=gpo.select.keep_rows(6))
    names = ("old_logp", "mask", "live", "length", "group")
    columns = {n: BATCH[n] for n in names}
    value, grad = jax.value_and_grad(
        lambda x: gpo.loss(recipe, x, reward=BATCH.reward, **columns)[0]
    )(BATCH.logp)
    a = gpo.apply(recipe.advantage, BATCH.reward, **columns)
    kept = gpo.apply(gpo.select.keep_rows(6), BATCH.replace(advantage=a))
    alone, _ = gpo.loss(
        gpo.recipes.dapo(), kept.logp, advantage=kept.advantage,
        **{n: kept[n] for n in names},
    )  # fmt: skip
    np.testing.assert_allclose(value, alone, rtol=1e-6)
    touched = np.flatnonzero(np.any(np.asarray(grad) != 0, axis=1))
    assert set(touched) <= set(kept["row"].tolist())


def test_take_reorders_every_column():
    order = jnp.asarray([3, 3, 0])
    found = take(BATCH, order)
    assert found["row"].tolist() == [3, 3, 0]
    np.testing.assert_array_equal(found.reward, BATCH.reward[order])
    assert found.plan.contexts.shape == BATCH.plan.contexts.shape


def test_drop_pivot_keeps_live_rows_without_tokens():
    batch = gpo.Batch.of(
        reward=jnp.asarray([0.0, 1.0, 2.0, 5.0]), group=jnp.zeros(4, jnp.int32),
        mask=jnp.asarray([[1], [1], [1], [0]], bool), live=jnp.ones(4, bool),
    )  # fmt: skip
    found = gpo.apply(gpo.select.drop_pivot(), batch)
    assert found.live.tolist() == [True, False, True, True]
