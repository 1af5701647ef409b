"""Shared words: a posterior over each prompt's success, and exact top-P logits."""

import jax
import jax.numpy as jnp

from gpo import segment
from gpo.batch import Batch


def success_counts(batch: Batch, prompts: int):
    """Per data-set prompt: (rollouts, summed success in [0, 1]) of this batch."""
    rows = batch.valid("rollout")
    success = jnp.where(rows, jnp.clip(batch["reward"], 0, 1), 0)
    size = rows.astype(success.dtype)

    def per_prompt(x):
        return jax.ops.segment_sum(x, batch["prompt"], prompts)

    return per_prompt(size), per_prompt(success)


def beta_update(a, b, batch: Batch, decay: float, prior: tuple[float, float]):
    """Beta posteriors of success after a batch; prompts that were not tried stay.

    ``a <- λ a + (1 - λ) a₀ + n s``, ``b <- λ b + (1 - λ) b₀ + n (1 - s)``.

    Args:
      a: (N,) pseudo-successes.
      b: (N,) pseudo-failures.
      batch: with ``reward`` in [0, 1] (clipped) and ``prompt``.
      decay: λ in [0, 1]; 1 never forgets.
      prior: (a₀, b₀).

    Returns:
      The new ``a`` and ``b``.

    Reference: MoPPS [187].
    """
    n, success = (x.astype(a.dtype) for x in success_counts(batch, a.shape[0]))
    tried = n > 0
    new_a = decay * a + (1 - decay) * prior[0] + success
    new_b = decay * b + (1 - decay) * prior[1] + n - success
    return jnp.where(tried, new_a, a), jnp.where(tried, new_b, b)


def best_first(score):
    """Logits under which Gumbel top-k draws exactly the prompts of highest score.

    ``-32 · rank``: neighbours differ by more than any float32 Gumbel noise. Ties go to
    the lower index.

    Args:
      score: (N,) any numbers.

    Returns:
      (N,) float32 logits.

    Reference: library word; Gumbel top-k trick, Kool et al., 2019, arXiv 1903.06059.
    """
    key = jnp.zeros(score.shape, jnp.int32)
    return -32.0 * segment.rank(-score, key).astype(jnp.float32)
