"""Shaping and merging of rewards."""

import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part, stateless


@part
def total(*weights: float) -> Transform:
    """Weighted sum of K rewards: ``r_b = Σ_k w_k R[b,k]``; NaN means not applicable.

    Args:
      *weights: K numbers; none: all 1.

    Returns:
      Transform (B, K) -> (B,). Rows where all K are NaN stay NaN.

    Raises:
      ValueError: K weights were expected.

    Reference: GDPO [70], NVlabs/GDPO (nansum).

    Status: code
    """

    def summed(value, batch):
        checks.rank("total takes rewards (B, K), which", value, 2)
        w = jnp.asarray(weights or (1.0,) * value.shape[1], value.dtype)
        checks.require(
            w.shape == value.shape[1:],
            f"total got {len(weights)} weights for {value.shape[1]} rewards",
        )
        missing = jnp.isnan(value)
        merged = jnp.sum(jnp.where(missing, 0, value) * w[None], axis=1)
        return jnp.where(missing.all(1), jnp.nan, merged)

    return stateless(summed)


@part
def overlong(limit: int, cache: int) -> Transform:
    """Soft punishment of long answers: 0 up to limit - cache tokens, then linear to -1.

    ``r_b + clip((limit - cache - length_b) / cache, -1, 0)``

    Args:
      limit: tokens from which the full penalty -1 is due.
      cache: tokens over which it grows.

    Returns:
      Transform (B,) -> (B,); reads ``length`` in tokens.

    Example:
      >>> import gpo
      >>> gpo.apply(overlong(10, 4), [0.0, 0.0, 0.0], length=[6, 7, 11]).tolist()
      [0.0, -0.25, -1.0]

    Reference: DAPO: An Open-Source LLM Reinforcement Learning System at Scale, Yu et
      al., 2025, arXiv 2503.14476.

    Status: code
    """
    checks.bounded("cache", cache, 1, limit)

    def penalised(value, batch):
        excess = (limit - cache - batch["length"]).astype(value.dtype) / cache
        return value + jnp.clip(excess, -1, 0)

    return stateless(penalised)


@part
def kl_penalty(coef: float) -> Transform:
    """Takes the sampled KL to the reference off the reward.

    ``r_b - coef · Σ_t (old_logp - ref_logp)[b,t]`` (k1, at the sampling policy).

    Args:
      coef: in reward per nat.

    Returns:
      Transform (B,) -> (B,); reads ``old_logp`` and ``ref_logp``.

    Reference: Back to Basics: Revisiting REINFORCE Style Optimization for Learning from
      Human Feedback in LLMs, Ahmadian et al., 2024, arXiv 2402.14740.

    Status: paper
    """

    def penalised(value, batch):
        paid = batch.token("old_logp") - batch.token("ref_logp")
        return value - coef * jnp.sum(paid, axis=1)

    return stateless(penalised)
