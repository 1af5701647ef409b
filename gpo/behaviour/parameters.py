"""Whose parameters sample: perturbed or delayed ones."""

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part, stochastic


@part
def perturb(std: float) -> Transform:
    """Samples under noisy parameters: ``θ + std · N(0, 1)``, drawn anew each step.

    Args:
      std: absolute standard deviation, >= 0.

    Returns:
      Transform params -> params. The learner's ratio corrects for the noise, since
      ``old_logp`` is taken under the parameters that sampled.

    Reference: Parameter Space Noise for Exploration, Plappert et al., 2017, arXiv
      1706.01905; the additive case of B3PO [1].

    Status: known
    """
    checks.bounded("std", std, 0)

    def noisy(params, batch, key):
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        moved = [
            x + (std * jax.random.normal(k, x.shape, jnp.float32)).astype(x.dtype)
            for x, k in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(tree, moved)

    return stochastic(noisy)


@part
def delay(steps: int) -> Transform:
    """Samples under the parameters of ``steps`` updates ago.

    Until then, under the initial ones. Makes the staleness of an asynchronous system
    inside the graph; the state holds ``steps`` copies of the parameters.

    Args:
      steps: >= 0; 0 is on policy.

    Returns:
      Transform params -> params.

    Reference: library word; the staleness of AReaL, Fu et al., 2025, arXiv 2505.24298.

    Status: known
    """
    checks.bounded("steps", steps, 0)

    def init(params):
        def copies(x):
            if isinstance(x, jax.ShapeDtypeStruct):
                return jnp.zeros((steps, *x.shape), x.dtype)
            return jnp.broadcast_to(x, (steps, *x.shape)) + jnp.zeros((), x.dtype)

        return jax.tree.map(copies, params)

    def update(params, state, batch, key):
        if steps == 0:
            return params, state
        oldest = jax.tree.map(lambda past: past[0], state)
        state = jax.tree.map(
            lambda past, x: jnp.concatenate([past[1:], x[None]]), state, params
        )
        return oldest, state

    return Transform(init, update)
