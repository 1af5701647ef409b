"""Curricula that predict a prompt's success before sampling it."""

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part
from gpo.curriculum.posterior import best_first, beta_update


@part
def mopps(
    low: float = 0.5,
    high: float = 0.5,
    decay: float = 1.0,
    prior: tuple[float, float] = (1.0, 1.0),
    pool: int | None = None,
) -> Transform:
    """Picks the prompts whose predicted success is nearest to a target band.

    Thompson sampling: ``p̂ ~ Beta(a, b)`` for each prompt; the P prompts with the
    smallest distance of p̂ to [low, high] are next; inside the band at random.

    Args:
      low: lower end of the band; low = high = .5 is the released "topk" rule, (.3, .7)
        its "threshold" rule.
      high: upper end of the band.
      decay: λ of the posterior, in [0, 1]; default 1, no forgetting.
      prior: Beta prior (a₀, b₀).
      pool: random candidates a step (released script: 16 times the prompts); None: all.

    Returns:
      Transform (N,) -> (N,) logits; reads ``prompt`` and ``reward`` in [0, 1]. State:
      the posterior's ``a`` and ``b``, each (N,).

    Reference: Can Prompt Difficulty be Online Predicted for Accelerating RL Finetuning
      of Reasoning Models?, Qu et al., 2025, arXiv 2507.04632 [187].

    Deviations: the released update sets a to 8 when a prompt has one rollout (operator
      precedence); not copied.

    Status: code
    """
    checks.fraction("decay", decay)
    checks.bounded("low", low, 0, high)

    def init(value):
        full = jnp.ones(value.shape, jnp.float32)
        return {"a": prior[0] * full, "b": prior[1] * full}

    def update(value, state, batch, key):
        checks.require(key is not None, "mopps draws from posteriors: pass key=...")
        a, b = beta_update(state["a"], state["b"], batch, decay, prior)
        k_beta, k_tie, k_pool = jax.random.split(key, 3)
        drawn = jax.random.beta(k_beta, a, b, dtype=a.dtype)
        distance = jnp.maximum(jnp.maximum(low - drawn, drawn - high), 0)
        # shuffling before a stable ranking breaks ties at random
        order = jax.random.permutation(k_tie, value.shape[0])
        if pool is not None:
            outside = jax.random.permutation(k_pool, value.shape[0]) >= pool
            distance = jnp.where(outside, distance + 2, distance)
        logits = jnp.zeros_like(distance).at[order].set(best_first(-distance[order]))
        return logits.astype(value.dtype), {"a": a, "b": b}

    return Transform(init, update)
