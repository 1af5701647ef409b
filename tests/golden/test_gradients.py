"""Gradients against central differences in float64, for everything differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from contracts import sample
from contracts.subject import of

import gpo
from gpo.objective import ratio, trust

STEP = 1e-6
ROWS = [r for r in (*table.OBJECTIVES, *table.AUXILIARIES, *table.RECIPES)]
# the weight is a constant for the gradient, by definition: checked below
STOPPED = ("objective.trust.cap", "recipes.cispo")


def slopes(fn, x, directions):
    """Exact and numerical slopes of a scalar function along directions."""
    grad = jax.grad(fn)(x)
    exact = [float(jnp.vdot(grad, d)) for d in directions]
    both = [(fn(x + STEP * d), fn(x - STEP * d)) for d in directions]
    return exact, [float(a - b) / (2 * STEP) for a, b in both]


def directions(shape, count=3):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape)) for _ in range(count)]


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.name not in STOPPED], ids=lambda r: r.name
)
def test_gradient_is_the_slope(row):
    subject = of(row.make())
    inputs = row.edit(sample.batch())
    value = row.value(inputs)
    with jax.enable_x64(True):
        value, batch = sample.cast((value, inputs), jnp.float64)
        state = subject.init(value, batch)
        # off policy, and away from the kinks of the clips
        mix = jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)

        @jax.jit
        def fn(value):
            out, _ = subject.update(value, state, batch, jax.random.key(0))
            return jnp.sum(jnp.where(batch.valid("token"), mix * out, 0))

        exact, numerical = slopes(fn, value, directions(value.shape))
    np.testing.assert_allclose(exact, numerical, rtol=1e-6, atol=1e-8)


def test_capped_weights_are_constants():
    batch = sample.batch()
    with jax.enable_x64(True):
        batch = sample.cast(batch, jnp.float64)
        made = gpo.chain(ratio.token(), trust.cap(1.2, 0.8))
        weights = jnp.clip(jnp.exp(batch.logp - batch.old_logp), 0.8, 1.2)

        def capped(logp):
            own = batch.replace(logp=logp)
            return jnp.sum(made.update(logp, made.init(logp), own, None)[0])

        def frozen(logp):
            gains = weights * batch["advantage"][:, None] * logp
            return jnp.sum(jnp.where(batch.valid("token"), gains, 0))

        along = directions(batch.logp.shape)
        exact, _ = slopes(capped, batch.logp, along)
        _, numerical = slopes(frozen, batch.logp, along)
    np.testing.assert_allclose(exact, numerical, rtol=1e-7)


def test_kl_gradients_pass_through_logp():
    batch = sample.batch()
    with jax.enable_x64(True):
        batch = sample.cast(batch, jnp.float64)
        for estimator in (gpo.objective.regulariser.k1, gpo.objective.regulariser.k2,
                          gpo.objective.regulariser.k3,
                          gpo.objective.regulariser.k3_ratio):  # fmt: skip
            part = gpo.objective.regulariser.kl(0.3, estimator)

            def fn(logp, part=part):
                own = batch.replace(logp=logp)
                out = part.update(jnp.zeros_like(logp), (), own, None)[0]
                return jnp.sum(jnp.where(batch.valid("token"), out, 0))

            exact, numerical = slopes(fn, batch.logp, directions(batch.logp.shape))
            np.testing.assert_allclose(exact, numerical, rtol=1e-7)
