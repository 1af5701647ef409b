"""Aggregations: the last weight, so that the loss is ``-Σ weight · gain``.

Counts are taken over the *mask* of the batch, not over the value, so tokens that an
earlier part deselected still count in the denominator. Rows that are not live count
nowhere; a live row without tokens adds 0 and still counts as a row.
"""

import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part, stateless


def _tokens(value, batch):
    return batch.valid("token", value).astype(value.dtype)


def _rows(value, batch):
    live = value.shape[0] if batch.live is None else jnp.sum(batch.live)
    return jnp.maximum(jnp.asarray(live, value.dtype), 1)


@part
def token_mean() -> Transform:
    """Every token counts the same: ``w / Σ_{b,t} m`` (DAPO, BNPO).

    Returns:
      Transform (B, T) -> (B, T). No token at all: weights 0.

    Reference: DAPO, Yu et al., 2025, arXiv 2503.14476.

    Status: code
    """
    return stateless(lambda w, b: w / jnp.maximum(jnp.sum(_tokens(w, b)), 1))


@part
def sequence_mean() -> Transform:
    """Every row counts the same: ``w / (B · Σ_t m[b])`` (GRPO, GSPO).

    Returns:
      Transform (B, T) -> (B, T), with B the number of live rows.

    Reference: DeepSeekMath, Shao et al., 2024, arXiv 2402.03300.

    Status: code
    """

    def mean(w, batch):
        own = jnp.sum(_tokens(w, batch), axis=1, keepdims=True)
        return w / (jnp.maximum(own, 1) * _rows(w, batch))

    return stateless(mean)


@part
def sequence_sum() -> Transform:
    """Mean over rows of token sums: ``w / B`` (RLOO).

    Returns:
      Transform (B, T) -> (B, T), with B the number of live rows.

    Reference: Back to Basics, Ahmadian et al., 2024, arXiv 2402.14740.

    Status: code
    """
    return stateless(lambda w, batch: w / _rows(w, batch))


@part
def token_sum(budget: int | None = None) -> Transform:
    """Constant denominator: ``w / (B · budget)`` (Dr. GRPO).

    Args:
      budget: tokens; None: T, the width of the batch, which is the generation limit.

    Returns:
      Transform (B, T) -> (B, T), with B the number of live rows.

    Reference: Understanding R1-Zero-Like Training, Liu et al., 2025, arXiv 2503.20783.

    Status: code
    """
    checks.bounded("budget", 1 if budget is None else budget, 1)
    return stateless(lambda w, b: w / (_rows(w, b) * (budget or w.shape[1])))


@part
def times(coef: float) -> Transform:
    """Multiplies by a constant: the coefficient of an auxiliary term.

    Args:
      coef: any number.

    Returns:
      Transform (B, T) -> (B, T).

    Reference: library word.
    """
    return stateless(lambda w, batch: coef * w)
