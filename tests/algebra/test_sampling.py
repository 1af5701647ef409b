"""Cuts of the support against numpy, and their replay in the learner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.compiling import EVENTS

import gpo
from gpo import sampling


def logits(seed, rows=8, vocab=50, dtype=np.float32):
    """Logits with a few ties and a few impossible tokens."""
    rng = np.random.default_rng(seed)
    x = (3 * rng.normal(size=(rows, vocab))).astype(dtype)
    x[:, rng.integers(0, vocab, 3)] = -np.inf
    x[:, rng.integers(0, vocab, 5)] = 1.5
    return x


def kept_top_k(x, k):
    return x >= np.sort(x, 1)[:, ::-1][:, min(k, x.shape[1]) - 1 :][:, :1]


def kept_top_p(x, mass):
    p = np.exp(x.astype(float) - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    order = np.argsort(-x, axis=1, kind="stable")
    before = np.take_along_axis(p, order, 1).cumsum(1)
    last = (before < mass).sum(1, keepdims=True).clip(max=x.shape[1] - 1)
    return x >= np.take_along_axis(np.take_along_axis(x, order, 1), last, 1)


def kept_min_p(x, share):
    return np.exp(x.astype(float) - x.max(1, keepdims=True)) >= share


CUTS = [
    *[(sampling.top_k(k), kept_top_k, k) for k in (1, 2, 7, 50, 60)],
    *[(sampling.top_p(p), kept_top_p, p) for p in (0.1, 0.5, 0.9, 0.99)],
    *[(sampling.min_p(s), kept_min_p, s) for s in (0.05, 0.3, 0.9)],
]


@pytest.mark.parametrize(("part", "reference", "argument"), CUTS)
def test_cuts_equal_numpy(part, reference, argument):
    run = jax.jit(lambda x: gpo.apply(part, x))
    for seed in range(5):
        x = logits(seed)
        found = np.asarray(run(x))
        expected = np.where(reference(x, argument), x, -np.inf)
        np.testing.assert_array_equal(found, expected)


def test_whole_rows_have_one_winner():
    x = logits(0)
    found = np.asarray(gpo.apply(sampling.greedy(), x))
    assert np.isfinite(found).sum(1).tolist() == [1] * 8
    assert np.array_equal(found.argmax(1), x.argmax(1))


def test_cuts_renormalise():
    """What is left is a distribution, and tokens outside have probability 0."""
    p = jax.nn.softmax(gpo.apply(sampling.top_k(3), logits(1)), axis=1)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    assert np.all((np.asarray(p) > 0).sum(1) >= 3)


def test_negative_zero_and_huge_logits_keep_their_order():
    x = jnp.asarray([[-1e30, -1.0, 0.0, 1e-30, 1e30, -jnp.inf]])
    for k, kept in ((1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (5, [0, 1, 2, 3, 4])):
        found = np.asarray(gpo.apply(sampling.top_k(k), x))
        assert np.flatnonzero(np.isfinite(found[0])).tolist() == kept


def test_new_hyper_parameters_compile_nothing():
    part = gpo.chain(
        sampling.temperature(1.0), sampling.top_k(5), sampling.top_p(0.9),
        sampling.min_p(0.1),
    )  # fmt: skip
    x = jnp.asarray(logits(0))
    run = jax.jit(part.update)
    state = part.init(x)
    out, state = run(x, state, gpo.Batch(), None)
    other = gpo.chain(
        sampling.temperature(0.5), sampling.top_k(2), sampling.top_p(1.0),
        sampling.min_p(0.0),
    ).init(x)  # fmt: skip
    compiled = len(EVENTS)
    out, _ = run(x, other, gpo.Batch(), None)
    assert len(EVENTS) == compiled
    np.testing.assert_array_equal(
        out, np.where(kept_top_k(np.asarray(x) / 0.5, 2), np.asarray(x) / 0.5, -np.inf)
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit_logits(dtype):
    x = jnp.asarray(logits(2)).astype(dtype)
    for part in (sampling.temperature(0.7), sampling.top_k(4), sampling.top_p(0.8),
                 sampling.min_p(0.1), sampling.greedy()):  # fmt: skip
        assert gpo.apply(part, x).dtype == dtype
    wide = np.asarray(x, np.float32)
    found = np.asarray(gpo.apply(sampling.top_p(0.8), x), np.float32)
    expected = np.where(kept_top_p(wide, 0.8), wide, -np.inf)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "cut",
    [sampling.top_k(2), sampling.top_p(0.3), sampling.min_p(0.8), sampling.greedy()],
    ids=gpo.describe,
)
def test_cuts_are_replayed_not_recomputed(cut):
    """With ``support`` the learner's logits come back, tempered but uncut."""
    part = gpo.chain(sampling.temperature(2.0), cut)
    x = jnp.asarray(logits(3))
    found = gpo.apply(part, x, support=jnp.zeros((8, 4), jnp.int32))
    np.testing.assert_allclose(found, x / 2, rtol=1e-6)
    assert np.any(np.asarray(gpo.apply(part, x)) != np.asarray(found))
