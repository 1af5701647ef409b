"""What is added to the gain. Estimators take log-ratios ``d = logp - ref_logp``."""

from collections.abc import Callable

import jax.numpy as jnp

from gpo.base import Transform, part, stateless
from gpo.objective.ratio import limited_exp, log_ratio


def k1(d, ratio):
    """``d``: unbiased as a value; its gradient as a loss has mean zero.

    Reference: Approximating KL Divergence, Schulman, 2020.
    """
    return d


def k2(d, ratio):
    """``d² / 2``: biased as a value; its on-policy gradient is the true one.

    Reference: Approximating KL Divergence, Schulman, 2020.
    """
    return d**2 / 2


def k3(d, ratio):
    """``exp(-d) - 1 + d``: unbiased and >= 0; its gradient is that of KL(ref || pi).

    Reference: Approximating KL Divergence, Schulman, 2020.
    """
    return jnp.expm1(-d) + d


def k3_ratio(d, ratio):
    """``ρ · k3(d)``: value and gradient unbiased under the sampling policy.

    Reference: Approximating KL Divergence, Schulman, 2020; the importance weight as in
      DeepSeek-V3.2, 2025, arXiv 2512.02556.
    """
    return ratio * k3(d, ratio)


@part
def kl(coef: float, estimator: Callable = k3) -> Transform:
    """Subtracts a KL estimate to the reference: ``gain - coef · k(logp - ref_logp)``.

    Args:
      coef: >= 0, in gain per nat.
      estimator: `k1`, `k2`, `k3` (GRPO's) or `k3_ratio`.

    Returns:
      Transform (B, T) gains -> (B, T) gains; reads ``logp``, ``ref_logp`` and, for
      `k3_ratio`, ``old_logp``.

    Reference: Approximating KL Divergence, Schulman, 2020; DeepSeekMath, Shao et al.,
      2024, arXiv 2402.03300.

    Deviations: k1 is offered for completeness; as a loss its mean gradient is zero.

    Status: code
    """

    def penalised(gain, batch):
        valid = batch.valid("token", gain)
        d = jnp.where(valid, batch["logp"] - batch["ref_logp"], 0)
        weight = None
        if estimator is k3_ratio:
            weight = limited_exp(log_ratio(batch["logp"], batch))
        return gain - coef * estimator(d, weight)

    return stateless(penalised)


@part
def entropy_bonus(coef: float) -> Transform:
    """Adds the policy's entropy to the gain: ``gain + coef · H``.

    Args:
      coef: in gain per nat.

    Returns:
      Transform (B, T) gains -> (B, T) gains; reads ``entropy``.

    Reference: Asynchronous Methods for Deep Reinforcement Learning, Mnih et al., 2016,
      arXiv 1602.01783.

    Status: known
    """
    return stateless(lambda gain, batch: gain + coef * batch.token("entropy", gain))
