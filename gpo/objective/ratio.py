"""Importance ratios: (B, T) logp to (B, T) ratios, with gradient."""

import jax.numpy as jnp

from gpo.base import Transform, part, stateless


def log_ratio(value, batch):
    """``logp - old_logp`` with invalid tokens zeroed before anything is exponentiated."""
    return jnp.where(batch.valid("token", value), value - batch["old_logp"], 0)


def limited_exp(d):
    """``exp(d)`` with ``d`` limited to ±20: beyond, the ratio is junk, and an overflow
    would turn a gain or a gradient of 0 into NaN."""
    return jnp.exp(jnp.clip(d, -20, 20))


@part
def token() -> Transform:
    """Token ratios ``ρ[b,t] = exp(logp - old_logp)``.

    Returns:
      Transform (B, T) logp -> (B, T) ratios, 1 on invalid tokens; reads ``old_logp``.

    Reference: Proximal Policy Optimization Algorithms, Schulman et al., 2017, arXiv
      1707.06347.

    Deviations: log-ratios are limited to ±20, as in released code.

    Status: code
    """
    return stateless(lambda value, batch: limited_exp(log_ratio(value, batch)))


@part
def sequence() -> Transform:
    """Length-normalised sequence ratio ``s_b = exp(mean_t (logp - old_logp)[b])``.

    Every token of the row carries the ratio; the gradient flows through the mean.

    Returns:
      Transform (B, T) logp -> (B, T) ratios, 1 on rows without tokens.

    Reference: Group Sequence Policy Optimization, Zheng et al., 2025, arXiv 2507.18071.

    Deviations: the mean log-ratio is limited to ±20.

    Status: code
    """

    def ratios(value, batch):
        d = log_ratio(value, batch)
        count = jnp.sum(batch.valid("token", value), axis=1, keepdims=True)
        mean = jnp.sum(d, axis=1, keepdims=True) / jnp.maximum(count, 1).astype(d.dtype)
        return jnp.broadcast_to(limited_exp(mean), d.shape)

    return stateless(ratios)
