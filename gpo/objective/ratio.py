"""Importance ratios: (B, T) logp to (B, T) ratios, with gradient."""

import jax.numpy as jnp

from gpo.base import Transform, part, stateless


def log_ratio(value, batch):
    """``logp - old_logp`` with invalid tokens zeroed before anything is exponentiated."""
    return jnp.where(batch.valid("token", value), value - batch["old_logp"], 0)


@part
def token() -> Transform:
    """Token ratios ``ρ[b,t] = exp(logp - old_logp)``.

    Returns:
      Transform (B, T) logp -> (B, T) ratios, 1 on invalid tokens; reads ``old_logp``.

    Reference: Proximal Policy Optimization Algorithms, Schulman et al., 2017, arXiv
      1707.06347.

    Status: code
    """
    return stateless(lambda value, batch: jnp.exp(log_ratio(value, batch)))


@part
def sequence() -> Transform:
    """Length-normalised sequence ratio ``s_b = exp(mean_t (logp - old_logp)[b])``.

    Every token of the row carries the ratio; the gradient flows through the mean.

    Returns:
      Transform (B, T) logp -> (B, T) ratios, 1 on rows without tokens.

    Reference: Group Sequence Policy Optimization, Zheng et al., 2025, arXiv 2507.18071.

    Status: code
    """

    def ratios(value, batch):
        d = log_ratio(value, batch)
        count = jnp.sum(batch.valid("token", value), axis=1, keepdims=True)
        mean = jnp.sum(d, axis=1, keepdims=True) / jnp.maximum(count, 1).astype(d.dtype)
        return jnp.broadcast_to(jnp.exp(mean), d.shape)

    return stateless(ratios)
