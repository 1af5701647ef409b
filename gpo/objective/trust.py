"""Trust regions: (B, T) ratios to (B, T) gains. They read ``advantage``."""

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part, stateless


@part
def unclipped() -> Transform:
    """Plain importance weighting: ``ρ · A``.

    Returns:
      Transform (B, T) ratios -> (B, T) gains.

    Reference: Proximal Policy Optimization Algorithms, Schulman et al., 2017, arXiv
      1707.06347 (eq. 6).

    Status: known
    """
    return stateless(lambda ratio, batch: ratio * batch.token("advantage", ratio))


@part
def clip(low: float = 0.2, high: float = 0.2) -> Transform:
    """Pessimistic clip: ``min(ρ A, clip(ρ, 1 - low, 1 + high) A)``.

    Args:
      low: distance below 1, in [0, 1].
      high: distance above 1, >= 0; .28 is DAPO's clip-higher.

    Returns:
      Transform (B, T) ratios -> (B, T) gains.

    Example:
      >>> import gpo, jax.numpy as jnp
      >>> r = jnp.array([[2.0, 0.5]])
      >>> gpo.apply(clip(), r, advantage=[1.0]).tolist()
      [[1.2000000476837158, 0.5]]

    Reference: Proximal Policy Optimization Algorithms, Schulman et al., 2017, arXiv
      1707.06347.

    Status: code
    """
    checks.bounded("low", low, 0, 1)
    checks.bounded("high", high, 0)

    def clipped(ratio, batch):
        advantage = batch.token("advantage", ratio)
        bounded = jnp.clip(ratio, 1 - low, 1 + high)
        return jnp.minimum(ratio * advantage, bounded * advantage)

    return stateless(clipped)


@part
def dual(cap: float = 3.0) -> Transform:
    """Bounds the loss of rows with negative advantage: ``max(gain, cap · A)`` if A < 0.

    Args:
      cap: largest ratio that still counts, > 1; default 3 as published. Follows `clip`.

    Returns:
      Transform (B, T) gains -> (B, T) gains.

    Reference: Mastering Complex Control in MOBA Games with Deep Reinforcement Learning,
      Ye et al., 2019, arXiv 1912.09729.

    Status: code
    """
    checks.bounded("cap", cap, 1)

    def bounded(gain, batch):
        advantage = batch.token("advantage", gain)
        return jnp.where(advantage < 0, jnp.maximum(gain, cap * advantage), gain)

    return stateless(bounded)


@part
def cap(high: float = 5.0, low: float = 0.0) -> Transform:
    """Capped weight on the score function: ``sg(clip(ρ, low, high)) · A · logp``.

    The gradient reaches every token; only its weight is limited.

    Args:
      high: absolute cap of the weight; default 5.
      low: absolute floor of the weight; default 0, no floor.

    Returns:
      Transform (B, T) ratios -> (B, T) gains; reads ``logp``.

    Reference: MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning
      Attention, MiniMax, 2025, arXiv 2506.13585 [200].

    Deviations: the paper tunes its bound without stating it; verl writes 1 - low and
      1 + high, TRL an absolute cap, as here.

    Status: code
    """
    checks.bounded("low", low, 0, high)

    def gains(ratio, batch):
        weight = jax.lax.stop_gradient(jnp.clip(ratio, low, high))
        return weight * batch.token("advantage", ratio) * batch.token("logp", ratio)

    return stateless(gains)
