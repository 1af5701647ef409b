"""Baselines shrunk towards running statistics."""

import jax.numpy as jnp

from gpo import segment
from gpo.advantage.group import keyed
from gpo.base import Transform, part


def _wide(value):
    """Accumulators outlive a step: at least 32 bits."""
    return value.dtype if value.dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def _welford(state, x, vote):
    """Adds values with votes to (count, mean, m2)."""
    count, mean, m2 = state
    n = jnp.sum(vote)
    batch_mean = jnp.sum(vote * x) / jnp.maximum(n, 1e-12)
    delta, total = batch_mean - mean, count + n
    share = n / jnp.maximum(total, 1e-12)
    spread = jnp.sum(vote * (x - batch_mean) ** 2)
    return total, mean + delta * share, m2 + spread + delta**2 * count * share


@part
def empirical_bayes() -> Transform:
    """Group mean shrunk to the running mean of all rewards.

    ``S = (σ²/G) / (σ²/G + τ²)``, ``V = (1 - S) · mean_g + S · μ``, ``A_b = r_b - V``,
    with running μ (mean reward of all rollouts), σ² (mean within-group variance, ddof
    0) and τ² (variance of group means, ddof 0). The current batch is folded in first.

    Returns:
      Transform (B,) -> (B,); reads ``group``. State: Welford accumulators. Follow it
      with ``zscore(by=(), ddof=0, eps=1e-6)`` for EBPO.

    Reference: EBPO: Empirical Bayes Policy Optimization, 2026, arXiv 2602.05165 [280].

    Deviations: σ² is the mean of per-group variances (the text leaves pooled open);
      with τ² = σ² = 0 the shrinkage is 0, GRPO's baseline.

    Status: paper
    """

    def init(value):
        names = ("rollouts", "groups", "within")
        return {n: tuple(jnp.zeros((), _wide(value)) for _ in range(3)) for n in names}

    def update(value, state, batch, key):
        ids, where = keyed(value, batch, "group")
        x = jnp.where(where, value, 0).astype(_wide(value))
        size = segment.count(ids, where, x.dtype)
        once = where.astype(x.dtype) / jnp.maximum(size, 1)
        # exact, so that without shrinkage a group of equal rewards gets exactly 0
        flat = segment.constant(x, ids, where)
        center = jnp.where(flat, x, segment.mean(x, ids, where))
        within = segment.var(x, ids, where, ddof=0)
        state = {
            "rollouts": _welford(state["rollouts"], x, where.astype(x.dtype)),
            "groups": _welford(state["groups"], center, once),
            "within": _welford(state["within"], within, once),
        }
        count, _, m2 = state["groups"]
        noise = state["within"][1] / jnp.maximum(size, 1)
        total = noise + m2 / jnp.maximum(count, 1e-12)
        shrink = jnp.where(total > 0, noise / jnp.where(total > 0, total, 1), 0)
        baseline = (1 - shrink) * center + shrink * state["rollouts"][1]
        return jnp.where(where, x - baseline, 0).astype(value.dtype), state

    return Transform(init, update)
