"""From shares to whole rollouts."""

import jax.numpy as jnp

from gpo import segment


def largest_remainder(shares, total: int):
    """Whole counts that sum to ``total``, closest to the shares.

    Each prompt gets the floor of ``total · share / Σ share``; what is left goes to the
    largest remainders, ties to the lowest index.

    Args:
      shares: (P,) non-negative; all zero counts as equal.
      total: rollouts to hand out, >= 0.

    Returns:
      (P,) int32 counts.

    Example:
      >>> import jax.numpy as jnp
      >>> largest_remainder(jnp.array([0.5, 0.3, 0.2]), 4).tolist()
      [2, 1, 1]

    Reference: Hamilton's method.
    """
    shares = jnp.where(jnp.sum(shares) > 0, shares, jnp.ones_like(shares))
    exact = total * (shares / jnp.sum(shares))
    # a share that is a whole number up to rounding is that number
    whole = jnp.round(exact)
    near = jnp.abs(exact - whole) < 1e-3
    floor = jnp.where(near, whole, jnp.floor(exact))
    rest = exact - floor  # below 0 where rounded up
    floor = floor.astype(jnp.int32)
    key = jnp.zeros(shares.shape, jnp.int32)
    left = total - jnp.sum(floor, dtype=jnp.int32)
    rank = segment.rank(-rest, key)
    # rounding to a near whole number can also hand out one too many
    surplus = segment.rank(rest, key) < -left
    return floor + (rank < left).astype(jnp.int32) - surplus.astype(jnp.int32)
