"""Batch and Plan: finding columns, levels, keys, voters, and errors with a cure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts import sample

import gpo
from gpo.batch import Batch, spread

BATCH = sample.batch()


def test_columns_come_from_fields_extras_and_plan():
    batch = Batch.of(reward=jnp.zeros(3), answer=jnp.ones(3), group=jnp.arange(3))
    assert batch["answer"].tolist() == [1, 1, 1]
    assert batch.extras.keys() == {"answer", "group"}
    assert batch.columns() == ["answer", "group", "reward"]
    assert BATCH["prompt"] is BATCH.plan.prompt
    assert batch.get("nothing") is None
    assert batch.get("nothing", 5) == 5
    assert batch.replace(answer=jnp.zeros(3))["answer"].tolist() == [0, 0, 0]
    assert batch["answer"].tolist() == [1, 1, 1], "replace copies"


def test_a_missing_column_lists_those_present():
    with pytest.raises(ValueError, match=r"no column 'ref_logp'; it has \['reward'\]"):
        Batch.of(reward=jnp.zeros(3))["ref_logp"]
    with pytest.raises(ValueError, match="Pass it as group="):
        gpo.apply(gpo.advantage.center(), [1.0, 2.0])


def test_rows_are_not_taken_from_unaligned_extras():
    extras = {"candidates": jnp.zeros(2), "a_scalar": jnp.zeros(())}
    assert Batch.of(row=jnp.arange(8), **extras).rows == 8
    assert Batch.of(reward=jnp.zeros((5, 2)), **extras).rows == 5
    assert Batch.of(answer=jnp.zeros(3)).rows == 3
    with pytest.raises(ValueError, match="empty batch has no rows"):
        _ = Batch().rows


def test_levels_are_explicit():
    batch = Batch.of(logp=jnp.zeros((3, 4)), turn_mask=jnp.ones((3, 4), bool))
    assert batch.shape("rollout") == (3,)
    assert batch.shape("turn") == (3, 4)
    assert batch.shape("token") == (3, 4)
    with pytest.raises(ValueError, match="level must be 'rollout', 'turn' or 'token'"):
        batch.shape("rows")
    with pytest.raises(ValueError, match="token-level part needs one of"):
        Batch.of(reward=jnp.zeros(3)).shape("token")


def test_keys():
    batch = Batch.of(group=jnp.asarray([9, 9, 4]), version=jnp.asarray([1, 2, 1]),
                     mask=jnp.ones((3, 2), bool))  # fmt: skip
    assert batch.key("group").tolist() == [1, 1, 0]
    assert batch.key(("group", "version")).tolist() == [1, 2, 0]
    assert batch.key(()).tolist() == [0, 0, 0]
    assert batch.key("row").tolist() == [0, 1, 2]
    assert batch.key("group", "token").tolist() == [[1, 1], [1, 1], [0, 0]]
    assert batch.key("group").dtype == jnp.int32


def test_keys_that_couple_rows_refuse_half_a_group():
    half = Batch.of(group=jnp.zeros(3, jnp.int32), whole=False)
    for by in ("group", ()):
        with pytest.raises(ValueError, match="couples rows, inside a microbatch"):
            half.key(by)
    assert half.key("row").tolist() == [0, 1, 2]


def test_voters():
    batch = Batch.of(
        live=jnp.asarray([True, False, True]),
        mask=jnp.asarray([[1, 0], [1, 1], [0, 0]], bool),
        turn_mask=jnp.asarray([[1, 1], [1, 1], [1, 0]], bool),
    )
    assert batch.valid("rollout").tolist() == [True, False, False]
    assert batch.valid("token").tolist() == [[True, False], [False] * 2, [False] * 2]
    assert batch.valid("turn").tolist() == [[True, True], [False, False], [True, False]]
    bare = Batch.of(reward=jnp.zeros(2))
    assert bare.valid("rollout").tolist() == [True, True]
    assert bare.valid("token", jnp.zeros((2, 1))).tolist() == [[True], [True]]
    numbers = Batch.of(mask=jnp.asarray([[1.0, 0.0]]))
    assert numbers.valid("token").tolist() == [[True, False]]


def test_token_columns_are_zero_where_nothing_is():
    batch = Batch.of(advantage=jnp.asarray([2.0, np.nan]),
                     live=jnp.asarray([True, False]),
                     mask=jnp.asarray([[1, 0], [1, 1]], bool))  # fmt: skip
    assert batch.token("advantage").tolist() == [[2, 0], [0, 0]]


def test_spread():
    row = jnp.arange(3)
    assert spread(row, (3, 2)).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert spread(row, (3, 1, 2)).shape == (3, 1, 2)
    assert spread(jnp.ones((3, 2)), (3, 2)).shape == (3, 2)
    for shape in ((3, 1), (4, 2), (2, 2), (2, 3)):
        with pytest.raises(ValueError, match="does not fit rows of shape"):
            spread(jnp.ones(shape), (3, 2))
    with pytest.raises(ValueError, match=r"must have shape \(4,\) or \(4, 2\)"):
        spread(row, (4, 2))


def test_batches_are_pytrees():
    leaves, tree = jax.tree.flatten(BATCH)
    again = jax.tree.unflatten(tree, leaves)
    assert again.columns() == BATCH.columns()
    assert again.plan.population == sample.POPULATION
    assert again.whole
    out = jax.jit(lambda b: b.replace(reward=b["reward"] + 1))(BATCH)
    np.testing.assert_allclose(out.reward, BATCH.reward + 1)
    with pytest.raises(AttributeError):
        BATCH.reward = 0


def test_plans_are_replaced_by_copy():
    plan = BATCH.plan.replace(width=4)
    assert plan.width == 4
    assert BATCH.plan.width is None
    assert jax.tree.structure(plan) != jax.tree.structure(BATCH.plan)
