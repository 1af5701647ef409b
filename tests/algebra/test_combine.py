"""The six combinators."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contracts import sample
from contracts.compiling import EVENTS

import gpo
from gpo.base import Transform

BATCH = sample.batch()
KEY = jax.random.key(3)


def add(amount):
    return gpo.stateless(lambda value, batch: value + amount)


def counting(step=1.0):
    """Adds how often it ran, and counts."""
    return Transform(
        lambda value: jnp.zeros((), jnp.float32),
        lambda value, state, batch, key: (value + step * (state + 1), state + 1),
    )


def noise():
    return gpo.stochastic(lambda value, batch, key: jax.random.normal(key, value.shape))


def test_chain_applies_in_order():
    part = gpo.chain(add(1.0), gpo.stateless(lambda v, b: v * 10), counting())
    state = part.init(jnp.zeros(2))
    value, state = part.update(jnp.zeros(2), state, BATCH, None)
    assert value.tolist() == [11, 11]
    value, state = part.update(jnp.zeros(2), state, BATCH, None)
    assert value.tolist() == [12, 12]
    assert gpo.apply(gpo.chain(), [1.0]).tolist() == [1.0]


def test_named_chain_finds_states_by_name():
    part = gpo.named_chain(first=counting(), second=counting(10.0))
    state = part.init(jnp.zeros(2))
    assert set(state) == {"first", "second"}
    value, state = part.update(jnp.zeros(2), state, BATCH, None)
    assert value.tolist() == [11, 11]
    # a state that was restored in another order is still found
    state = dict(reversed(state.items())) | {"second": jnp.float32(4)}
    value, _ = part.update(jnp.zeros(2), state, BATCH, None)
    assert value.tolist() == [52, 52]


def test_weighted_sum():
    part = gpo.weighted_sum((0.5, add(1.0)), (2.0, counting()))
    state = part.init(jnp.zeros(2))
    value, state = part.update(jnp.ones(2), state, BATCH, None)
    assert value.tolist() == [5, 5]
    value, _ = part.update(jnp.ones(2), state, BATCH, None)
    assert value.tolist() == [7, 7]
    with pytest.raises(ValueError, match="at least one"):
        gpo.weighted_sum()


def test_where_takes_scalars_rows_and_values():
    for condition, expected in (
        (lambda v, b: True, [[1, 1], [2, 2]]),
        (lambda v, b: b["length"] > 3, [[1, 1], [-1, -1]]),
        (lambda v, b: v > 5, [[0, 0], [-1, -1]]),
    ):
        part = gpo.where(condition, add(1.0), gpo.stateless(lambda v, b: v * 0 - 1))
        value = jnp.asarray([[0.0, 0], [1, 1]])
        expected = {(1, 1): expected}[(1, 1)]
        found = gpo.apply(part, value, length=[4, 2])
        if expected[0][0] == 0:
            expected = [[-1, -1], [-1, -1]]
        assert found.tolist() == expected


def test_where_runs_both_branches():
    part = gpo.where(lambda v, b: False, counting(), counting(2.0))
    state = part.init(jnp.zeros(1))
    value, state = part.update(jnp.zeros(1), state, BATCH, None)
    assert value.tolist() == [2]
    assert [float(s) for s in state] == [1, 1]


def test_per_column_has_a_state_and_a_key_for_each():
    part = gpo.per_column(gpo.chain(counting(), noise()))
    value = jnp.zeros((4, 3))
    state = part.init(value)
    assert len(state) == 3
    out, state = part.update(value, state, BATCH, KEY)
    assert out.shape == (4, 3)
    assert np.unique(np.asarray(out)).size == 12
    assert jax.tree.leaves(state) == [1, 1, 1]
    with pytest.raises(ValueError, match=r"shape \(B, K\), received \(4,\)"):
        part.init(jnp.zeros(4))


def test_elements_draw_from_their_own_keys():
    two = gpo.chain(noise(), gpo.stateless(lambda v, b: v), noise())
    out, _ = two.update(jnp.zeros(3), two.init(jnp.zeros(3)), BATCH, KEY)
    expected = jax.random.normal(jax.random.fold_in(KEY, 2), (3,))
    np.testing.assert_array_equal(out, expected)
    summed = gpo.weighted_sum((1.0, noise()), (-1.0, noise()))
    out, _ = summed.update(jnp.zeros(3), summed.init(jnp.zeros(3)), BATCH, KEY)
    assert np.all(np.asarray(out) != 0)
    with pytest.raises(ValueError, match="needs a PRNG key"):
        gpo.apply(noise(), [0.0])


def test_scheduled_follows_the_count():
    part = gpo.scheduled(
        lambda low, high: gpo.objective.trust.clip(low, high),
        low=optax.linear_schedule(0.1, 0.5, 4),
        high=lambda step: 0.0 * step.astype(jnp.float32),
    )
    batch = gpo.Batch.of(advantage=jnp.asarray([-1.0]))
    ratio = jnp.zeros((1, 1))
    state = part.init(ratio)
    found = []
    run = jax.jit(part.update)
    compiled = None
    for _ in range(6):
        gain, state = run(ratio, state, batch, None)
        found.append(-float(gain[0, 0]))
        compiled = compiled or len(EVENTS)
    np.testing.assert_allclose(found, [0.9, 0.8, 0.7, 0.6, 0.5, 0.5], rtol=1e-5)
    assert int(state["count"]) == 6
    assert len(EVENTS) == compiled


def test_scheduled_passes_structs_and_inner_states():
    part = gpo.scheduled(lambda base: counting(), base=lambda step: step)
    state = part.init(jax.ShapeDtypeStruct((3,), jnp.float32))
    value, state = part.update(jnp.zeros(3), state, BATCH, None)
    value, state = part.update(jnp.zeros(3), state, BATCH, None)
    assert value.tolist() == [2, 2, 2]
    assert float(state["inner"]) == 2


def test_names_reach_the_profile():
    part = gpo.chain(gpo.advantage.center(), gpo.advantage.scale(eps=1e-4))
    text = (
        jax.jit(lambda v, b: part.update(v, part.init(v), b, None)[0])
        .lower(BATCH.reward, BATCH)
        .as_text(debug_info=True)
    )
    assert "advantage.center" in text
    assert "advantage.scale" in text
