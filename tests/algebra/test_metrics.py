"""Diagnostics, and the scores of an evaluation."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from contracts import sample

import gpo
from gpo import metrics


def test_pass_at_k_equals_counting_subsets():
    rng = np.random.default_rng(0)
    correct = rng.random((5, 6)) < [[0.0], [0.2], [0.5], [0.8], [1.0]]
    for k in range(1, 7):
        expected = [
            np.mean([row[list(c)].any() for c in itertools.combinations(range(6), k)])
            for row in correct
        ]
        np.testing.assert_allclose(metrics.pass_at_k(correct, k), expected, atol=1e-12)
    np.testing.assert_allclose(metrics.pass_at_k(correct, 1), metrics.avg_at_k(correct))
    for k in (0, 7):
        with pytest.raises(ValueError, match="1 <= k <= n = 6 samples, received"):
            metrics.pass_at_k(correct, k)


def test_pass_at_k_stays_exact_for_many_samples():
    correct = np.zeros((1, 2000))
    correct[0, 0] = 1
    np.testing.assert_allclose(metrics.pass_at_k(correct, 1000), [0.5], rtol=1e-9)


def test_maj_at_k():
    answers = [[3, 5, 5], ["", None, "7"], [1, 2, 2], [None, ""], ["a", "b"]]
    answers = [[*a, *[None] * (3 - len(a))] for a in answers]
    correct = [[1, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 0, 0]]
    # the majority 5 is wrong; 7 is the only answer; 2 wins; no answer; a tie: the first
    expected = [False, True, True, False, True]
    assert metrics.maj_at_k(answers, correct).tolist() == expected


def test_summary_by_hand():
    batch = gpo.Batch.of(
        logp=jnp.log(jnp.asarray([[0.5, 0.9], [0.2, 0.3], [0.4, 0.4]])),
        old_logp=jnp.log(jnp.asarray([[0.5, 0.3], [0.4, 0.3], [0.1, 0.1]])),
        mask=jnp.asarray([[1, 1], [1, 0], [1, 1]], bool),
        live=jnp.asarray([True, True, False]),
        reward=jnp.asarray([1.0, 0.0, 7.0]),
        advantage=jnp.asarray([0.5, -0.7, 9.0]),
        length=jnp.asarray([2, 1, 2], jnp.int32),
        truncated=jnp.asarray([True, False, True]),
        entropy=jnp.asarray([[1.0, 2.0], [3.0, np.nan], [np.nan, np.nan]]),
        group=jnp.asarray([0, 0, 1], jnp.int32),
    )
    found = metrics.summary(batch)
    ratios = np.array([1.0, 3.0, 0.5])
    expected = {
        "live": 2 / 3, "reward": 0.5, "no_signal": 0.0, "length": 1.5, "truncated": 0.5,
        "advantage": 0.6, "entropy": 2.0, "ratio": ratios.mean(), "ratio_max": 3.0,
        "outside": 2 / 3, "kl_old": np.mean(ratios - 1 - np.log(ratios)),
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_no_signal_counts_groups_not_rows():
    batch = gpo.Batch.of(
        group=jnp.asarray([0] * 6 + [1, 1, 2], jnp.int32),
        reward=jnp.asarray([1.0] * 6 + [0.0, 1.0] + [1.0]),
    )
    np.testing.assert_allclose(metrics.no_signal(batch), 2 / 3, rtol=1e-6)


def test_summary_of_nothing_is_finite():
    for edge, batch in sample.edges(sample.batch()).items():
        for name, value in metrics.summary(batch).items():
            assert np.isfinite(value), (edge, name)


@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e3])
def test_summary_ignores_what_is_masked(junk):
    batch = sample.batch()
    spoilt = sample.corrupt(batch, batch, junk)
    found, expected = metrics.summary(spoilt), metrics.summary(batch)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
