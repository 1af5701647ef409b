"""KL penalties inside the return."""

import jax.numpy as jnp

from gpo.base import Transform, part, stateless
from gpo.batch import spread


@part
def kl_to_go(coef: float) -> Transform:
    """Token returns with the KL still to come taken off.

    ``A[b,t] = r_b - coef · Σ_{t' >= t} (old_logp - ref_logp)[b,t']``

    Args:
      coef: weight of the k1 estimate, in reward per nat.

    Returns:
      Transform (B,) -> (B, T); reads ``old_logp`` and ``ref_logp``.

    Reference: REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global
      Advantage Normalization, Hu et al., 2025, arXiv 2501.03262.

    Deviations: the penalty is evaluated at the sampling policy.

    Status: paper
    """

    def returns(value, batch):
        paid = batch.token("old_logp") - batch.token("ref_logp")
        to_go = jnp.cumsum(paid[:, ::-1], axis=1)[:, ::-1]
        return jnp.where(
            batch.valid("token"), spread(value, paid.shape) - coef * to_go, 0
        )

    return stateless(returns)
