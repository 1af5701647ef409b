"""Step sizes from the effective sample size."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpo import checks, metrics
from gpo.base import Label


def square_root(s):
    """The rule for Adam-like optimisers: ``√s``."""
    return jnp.sqrt(s)


def linear(s):
    """The rule for plain gradient steps: ``s``."""
    return s


def effective_share(batch):
    """Effective sample size over the number of rows, from whole-row ratios.

    ``ESS / B = (Σ w)² / (B · Σ w²)``, ``w_b = exp(Σ_t (logp - old_logp)[b])``; the
    maximum is taken off before the exponential, since the statistic has no scale.
    0 without rows.
    """
    rows = batch.valid("rollout")
    d = jnp.sum(metrics.log_ratio(batch), axis=1)
    top = jnp.max(jnp.where(rows, d, -jnp.inf), initial=-jnp.inf)
    w = jnp.where(rows, jnp.exp(jnp.where(rows, d - top, 0)), 0)
    return jnp.sum(w) ** 2 / jnp.maximum(
        jnp.sum(w**2) * jnp.sum(rows.astype(w.dtype)), 1e-12
    )


def scale_by_ess(
    base: float = 1.0, rule: Callable = square_root
) -> optax.GradientTransformationExtraArgs:
    """Scales updates by the effective sample size of the minibatch.

    ``s = min(1, (ESS / B) / base)``; updates are multiplied by ``rule(s)``.

    Args:
      base: share of effective rows from which the full step is taken, > 0.
      rule: `square_root` (for Adam-like optimisers, default) or `linear`.

    Returns:
      An optax transformation whose ``update`` takes ``batch=`` with ``logp`` and
      ``old_logp``. Put it after the optimiser: ``gpo.gradient.after(scale_by_ess())``.

    Reference: VCPO: Variance Controlled Policy Optimization, 2026, arXiv 2602.17616
      [171].

    Deviations: unclipped whole-row weights, as released; part (i) of the method.

    Status: code
    """
    checks.bounded("base", base, 1e-9)

    def update(updates, state, params=None, *, batch, **extra):
        factor = rule(jnp.minimum(1.0, effective_share(batch) / base))
        scaled = jax.tree.map(lambda u: u * factor.astype(u.dtype), updates)
        return scaled, state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        update,  # type: ignore[arg-type]
    )


class Around(NamedTuple):
    """A ``gradient`` slot: called on an optimiser, it puts a transformation behind."""

    transformation: optax.GradientTransformation
    label: Label

    def __call__(self, optimiser: optax.GradientTransformation):
        return optax.chain(optimiser, self.transformation)


def after(transformation: Callable[..., Any], **arguments) -> Around:
    """A ``gradient`` slot that runs a transformation on the optimiser's updates.

    Args:
      transformation: a function that makes an optax transformation, for example
        `scale_by_ess`.
      **arguments: passed to it.

    Returns:
      ``optimiser -> optax.chain(optimiser, transformation(**arguments))``.

    Reference: library word; `optax.chain`.
    """
    inner = Label(f"gradient.{transformation.__name__}", arguments)
    label = Label("gradient.after", {"transformation": inner})
    return Around(transformation(**arguments), label)
