"""Token selection."""

import jax.numpy as jnp

from gpo import checks, segment
from gpo.base import Transform, part, stateless


@part
def forking(share: float = 0.2) -> Transform:
    """Keeps the tokens where the sampling policy was least certain.

    ``w · 1[H >= quantile_{1-share}(H)]`` over all valid tokens of the minibatch, linear
    interpolation. Follow it with `token_mean`, whose count stays the original one.

    Args:
      share: of tokens that keep their gradient, in (0, 1]; default .2 as published.

    Returns:
      Transform (B, T) -> (B, T); reads ``old_entropy`` (B, T) in nats.

    Example:
      >>> import gpo, jax.numpy as jnp
      >>> h = jnp.array([[0.1, 2.0, 0.3, 0.05, 1.2]])
      >>> gpo.apply(forking(0.4), jnp.ones((1, 5)), old_entropy=h).tolist()
      [[0.0, 1.0, 0.0, 0.0, 1.0]]

    Reference: Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective
      Reinforcement Learning for LLM Reasoning, Wang et al., 2025, arXiv 2506.01939
      [316].

    Deviations: none; equal entropies keep every token.

    Status: code
    """
    checks.fraction("share", share)

    def kept(value, batch):
        entropy, where = batch["old_entropy"], batch.valid("token", value)
        key = batch.key((), "token", value)
        threshold = segment.quantile(entropy, key, 1 - share, where)
        return jnp.where(where & (entropy >= threshold), value, 0)

    return stateless(kept)
