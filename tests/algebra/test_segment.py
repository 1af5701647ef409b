"""Segment statistics against plain loops in numpy, over ragged groups with holes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo import advantage, segment


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def std(x, ddof):
    return np.sqrt(((x - x.mean()) ** 2).sum() / max(len(x) - ddof, 1))


def lower_median(x):
    return np.sort(x)[(len(x) - 1) // 2]


# one number a segment; of the voting members
REDUCTIONS = {
    "total": (segment.total, np.sum),
    "mean": (segment.mean, np.mean),
    "max": (segment.max, np.max),
    "min": (segment.min, np.min),
    "var0": (lambda *a: segment.var(*a, ddof=0), lambda x: std(x, 0) ** 2),
    "var1": (lambda *a: segment.var(*a, ddof=1), lambda x: std(x, 1) ** 2),
    "std0": (lambda *a: segment.std(*a, ddof=0), lambda x: std(x, 0)),
    "std1": (lambda *a: segment.std(*a, ddof=1), lambda x: std(x, 1)),
    "median": (segment.median, np.median),
    "lower_median": (segment.lower_median, lower_median),
    "q.3": (
        lambda x, k, w: segment.quantile(x, k, 0.3, w),
        lambda x: np.quantile(x, 0.3),
    ),
    "q1": (lambda x, k, w: segment.quantile(x, k, 1.0, w), np.max),
    "nth": (
        lambda x, k, w: segment.nth(x, k, 2, w),
        lambda x: np.sort(x)[min(2, len(x) - 1)],
    ),
    "mad": (advantage.mad, lambda x: lower_median(np.abs(x - lower_median(x)))),
    "constant": (segment.constant, lambda x: x.max() == x.min()),
    "count": (lambda x, k, w: segment.count(k, w), len),
}
# one number a voting member
MEMBERS = {
    "softmax": (segment.softmax, softmax),
    "leave_one_out": (
        segment.leave_one_out,
        lambda x: (x.sum() - x) / max(len(x) - 1, 1) if len(x) > 1 else 0 * x,
    ),
    "cumulative": (segment.cumulative, np.cumsum),
    "rank": (segment.rank, lambda x: np.argsort(np.argsort(x, kind="stable"))),
}


def ragged(seed, shape=(24,), ties=False):
    """Values with NaN where nothing votes, keys with gaps, and a segment of none."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(np.float32)
    x = np.round(x) if ties else x
    key = rng.choice([0, 2, 3, 7, 11], shape).astype(np.int32)
    where = (rng.random(shape) < 0.7) & (key != 7)
    return np.where(where, x, np.nan), key, where


def loop(reference, x, key, where, members):
    """The statistic of every voting element, by a loop over segments."""
    out = np.zeros(x.shape)
    for k in np.unique(key):
        votes = (key == k) & where
        if votes.any():
            value = reference(x[votes])
            out[votes if members else key == k] = value
    return out


@pytest.mark.parametrize("shape", [(24,), (6, 4)])
@pytest.mark.parametrize("name", [*REDUCTIONS, *MEMBERS])
def test_statistics_equal_loops(name, shape):
    members = name in MEMBERS
    ours, reference = (REDUCTIONS | MEMBERS)[name]
    run = jax.jit(ours)
    for seed in range(6):
        x, key, where = ragged(seed, shape, ties=seed % 2)
        found = np.asarray(run(jnp.asarray(x), jnp.asarray(key), jnp.asarray(where)))
        expected = loop(reference, x, key, where, members)
        empty = ~where if members else np.isin(key, [7])
        if name == "constant":
            expected[empty] = True
        keep = where if members else np.ones(shape, bool)
        np.testing.assert_allclose(found[keep], expected[keep], rtol=2e-5, atol=1e-5)
        if not members:
            assert np.all(found[np.isin(key, [7])] == (name == "constant"))


@pytest.mark.parametrize("name", ["max", "min", "total", "nth", "rank"])
def test_integers_work(name):
    ours, reference = (REDUCTIONS | MEMBERS)[name]
    x = np.array([5, -3, 2, 2], np.int32)
    key = np.zeros(4, np.int32)
    found = ours(jnp.asarray(x), jnp.asarray(key), jnp.ones(4, bool))
    np.testing.assert_array_equal(found, np.broadcast_to(reference(x), 4))


@pytest.mark.parametrize("name", [n for n in REDUCTIONS if n[0] in "tmvsq"])
@pytest.mark.parametrize("equal", [False, True])
def test_gradients_are_finite_and_zero_where_nothing_votes(name, equal):
    x, key, where = ragged(3)
    x = np.where(where, 0.7, np.nan).astype(np.float32) if equal else x
    ours, _ = REDUCTIONS[name]
    grad = jax.grad(lambda x: jnp.sum(ours(x, jnp.asarray(key), jnp.asarray(where))))(
        jnp.asarray(x)
    )
    assert np.all(np.isfinite(grad))
    assert np.all(np.asarray(grad)[~where] == 0)


def test_gradient_of_the_standard_deviation():
    x = jnp.asarray([1.0, 2.0, 4.0, 5.0])
    key = jnp.zeros(4, jnp.int32)
    grad = jax.grad(lambda x: segment.std(x, key, ddof=0)[0])(x)
    np.testing.assert_allclose(grad, (x - 3) / (4 * np.sqrt(2.5)), rtol=1e-5)


def test_dense_numbers_rows_of_columns():
    a = np.array([7, -3, 7, 2**30, -3], np.int32)
    b = np.array([1, 1, 0, 1, 1], np.int32)
    found = segment.dense(jnp.asarray(a), jnp.asarray(b))
    expected = np.unique(np.stack([a, b], 1), axis=0, return_inverse=True)[1]
    assert found.tolist() == expected.ravel().tolist()
    assert segment.dense(jnp.asarray([[5, 5], [1, 5]])).tolist() == [[1, 1], [0, 1]]
    assert segment.dense(jnp.asarray([4])).tolist() == [0]


def test_sums_of_16_bits_do_not_saturate():
    x = jnp.ones(3000, jnp.bfloat16)
    key = jnp.zeros(3000, jnp.int32)
    np.testing.assert_allclose(float(segment.total(x, key)[0]), 3000, rtol=0.01)
    np.testing.assert_allclose(float(segment.mean(x, key)[0]), 1, rtol=0.01)
    assert segment.count(key, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    ramp = jnp.arange(3000, dtype=jnp.bfloat16)
    middle = float(segment.median(ramp, key)[0])
    np.testing.assert_allclose(middle, 1500, rtol=0.02)


def test_a_large_segment_does_not_round_away_the_next():
    x = jnp.asarray([1e8, 0.25, 0.5])
    key = jnp.asarray([0, 1, 1], jnp.int32)
    assert segment.cumulative(x, key).tolist() == [1e8, 0.25, 0.75]


def test_equal_values_have_exactly_no_variance():
    x = jnp.full(12, 0.7, jnp.float32)
    key = jnp.zeros(12, jnp.int32)
    assert np.all(np.asarray(segment.var(x, key, ddof=0)) == 0)
    assert np.all(np.asarray(segment.std(x, key, ddof=1)) == 0)


def test_shapes_must_agree():
    key = jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match=r"one shape.*\(4,\)"):
        segment.total(jnp.zeros(4), key)
    with pytest.raises(ValueError, match="one shape"):
        segment.mean(jnp.zeros(3), key, jnp.ones(2, bool))
