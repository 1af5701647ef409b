"""Temperature and cuts of the support.

The hyper-parameters are the parts' state, so changing them compiles nothing. A cut sets
the logits of removed tokens to -inf. In the learner the cuts are replayed, not
recomputed: there the batch has a column ``support``, and the cuts return the logits as
they came.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part, stateless


def _holding(name: str, value, fn: Callable) -> Transform:
    """A part with one traced hyper-parameter, kept in its state."""

    def init(logits):
        return {name: jnp.asarray(value, jnp.float32)}

    def update(logits, state, batch, key):
        return fn(logits, state[name], batch), state

    return Transform(init, update)


def _cut(logits, keep, batch):
    replayed = batch is not None and batch.get("support") is not None
    return logits if replayed else jnp.where(keep, logits, -jnp.inf)


def _ordered(x):
    """float32 to int32 with the same order, so that thresholds can be bisected."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _threshold(logits, enough: Callable):
    """Largest value v of each row for which ``enough(logits >= v)`` holds.

    32 halvings over the ordered bits are exact, and on wide vocabularies much cheaper
    than a sort. ``enough`` maps a (B, V) bool to (B,) bool and is monotone.
    """
    bits = _ordered(logits)
    low, high = jnp.min(bits, axis=1), jnp.max(bits, axis=1)

    def halve(_, bounds):
        low, high = bounds
        # the upper middle, without overflow
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
        good = enough(bits >= middle[:, None])
        return jnp.where(good, middle, low), jnp.where(good, high, middle - 1)

    low, _ = jax.lax.fori_loop(0, 32, halve, (low, high))
    return bits >= low[:, None]


@part
def temperature(value: float = 1.0) -> Transform:
    """Divides the logits: ``z / τ``.

    Args:
      value: τ > 0; for the most likely token use `greedy`.

    Returns:
      Transform (B, V) -> (B, V). State: τ.

    Raises:
      ValueError: τ is not positive.

    Reference: A Learning Algorithm for Boltzmann Machines, Ackley et al., 1985.

    Status: known
    """
    checks.bounded("temperature", value, 1e-6)
    return _holding("temperature", value, lambda z, t, batch: z / t.astype(z.dtype))


@part
def top_k(count: int) -> Transform:
    """Keeps the ``count`` largest logits of each row; ties with the last stay.

    Args:
      count: >= 1.

    Returns:
      Transform (B, V) -> (B, V). State: the count.

    Reference: Hierarchical Neural Story Generation, Fan et al., 2018, arXiv 1805.04833.

    Status: known
    """
    checks.bounded("count", count, 1)

    def cut(z, k, batch):
        keep = _threshold(z, lambda kept: jnp.sum(kept, axis=1).astype(k.dtype) >= k)
        return _cut(z, keep, batch)

    return _holding("count", count, cut)


@part
def top_p(mass: float) -> Transform:
    """Keeps the smallest set of most likely tokens with probability at least ``mass``.

    Args:
      mass: in (0, 1]; 1 keeps every token that has any probability.

    Returns:
      Transform (B, V) -> (B, V). State: the mass. Ties with the last token stay.

    Reference: The Curious Case of Neural Text Degeneration, Holtzman et al., 2019,
      arXiv 1904.09751.

    Status: known
    """
    checks.fraction("mass", mass)

    def cut(z, p, batch):
        probability = jax.nn.softmax(z.astype(jnp.float32), axis=1)
        # rounding must not ask for more than all there is
        goal = jnp.minimum(p, jnp.sum(probability, axis=1) * (1 - 1e-6))

        def enough(kept):
            return jnp.sum(jnp.where(kept, probability, 0), axis=1) >= goal

        return _cut(z, _threshold(z, enough) | (p >= 1), batch)

    return _holding("mass", mass, cut)


@part
def min_p(share: float) -> Transform:
    """Keeps tokens at least ``share`` times as likely as the most likely one.

    Args:
      share: in [0, 1].

    Returns:
      Transform (B, V) -> (B, V). State: the share.

    Reference: Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
      Outputs, Nguyen et al., 2024, arXiv 2407.01082.

    Status: known
    """
    checks.fraction("share", share)

    def cut(z, s, batch):
        wide = z.astype(jnp.float32)
        keep = wide - jnp.max(wide, axis=1, keepdims=True) >= jnp.log(s)
        return _cut(z, keep, batch)

    return _holding("share", share, cut)


@part
def greedy() -> Transform:
    """Keeps the largest logit of each row only, the first among equals.

    Returns:
      Transform (B, V) -> (B, V).

    Reference: library word.
    """

    def cut(z, batch):
        best = jnp.argmax(z, axis=1).astype(jnp.int32)[:, None]
        keep = jnp.arange(z.shape[1], dtype=jnp.int32)[None] == best
        return _cut(z, keep, batch)

    return stateless(cut)
