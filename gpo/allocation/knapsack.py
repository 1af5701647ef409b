"""Rollouts where they are worth most."""

import functools

import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform, part
from gpo.curriculum.posterior import success_counts

_sum = functools.partial(jnp.sum, dtype=jnp.int32)


def marginal_gain(n, p):
    """Gain of rollout n + 1: ``[pⁿ(1 - p) + (1 - p)ⁿ p] · p (1 - p)²``.

    The difference of ``V(n, p) = [1 - pⁿ - (1 - p)ⁿ] · p (1 - p)²``, the chance of a
    group with both outcomes times the information in one. It falls with n, so taking
    the largest gains first is exact.
    """
    return (p**n * (1 - p) + (1 - p) ** n * p) * p * (1 - p) ** 2


def allocate(p, fixed, total: int, low: int, high: int, target: float):
    """(P,) int32 counts summing to ``total``, by the largest marginal gains.

    Args:
      p: (P,) success rates.
      fixed: (P,) bool: prompts that get ``total // P`` instead (nothing known yet).
      total: rollouts to hand out.
      low: least count of a prompt.
      high: largest count of a prompt.
      target: chance of a mixed group from which a prompt counts as served.
    """
    count = p.shape[0]
    share = total // count
    base = jnp.where(fixed, jnp.int32(share), jnp.int32(low))
    n = jnp.arange(low, high)[:, None].astype(p.dtype)
    rate = p[None]
    gain = marginal_gain(n, rate)
    dead = rate**n + (1 - rate) ** n  # chance that the group is not mixed
    hopeless = jnp.broadcast_to(rate == 0, gain.shape)
    # first what pays and is not served yet, then unsolved prompts, then the rest
    tier = jnp.where((gain > 0) & (dead > 1 - target), 0, jnp.where(hopeless, 1, 2))
    tier = jnp.where(fixed[None], 3, tier)
    order = jnp.lexsort((-gain.ravel(), tier.ravel()))
    place = (
        jnp.zeros(order.shape, jnp.int32)
        .at[order]
        .set(jnp.arange(order.size, dtype=jnp.int32))
    )
    budget = total - _sum(base)
    taken = (place.reshape(gain.shape) < budget) & (tier < 3)
    counts = base + _sum(taken, axis=0)
    # what the caps leave over goes round the prompts whose count was fixed
    left, prompts = total - _sum(counts), _sum(fixed)
    index = jnp.cumsum(fixed, dtype=jnp.int32) - 1
    extra = left // jnp.maximum(prompts, 1)
    more = extra + (index < left - extra * prompts).astype(jnp.int32)
    counts = counts + jnp.where(fixed, more, 0)
    uniform = share + (jnp.arange(count) < total - share * count).astype(jnp.int32)
    feasible = (budget >= 0) & (_sum(counts) == total)
    return jnp.where(feasible, counts, uniform)


@part
def knapsack(
    low: int = 2, high: int = 128, decay: float = 0.0, target: float = 1.0
) -> Transform:
    """Spends the step's rollouts where a mixed group is likely and informative.

    Maximises ``Σ_i V(n_i, p_i)``, ``V(n, p) = [1 - pⁿ - (1 - p)ⁿ] · p (1 - p)²``, under
    ``Σ n_i = B`` and ``low <= n_i <= high``, exactly.

    Args:
      low: least rollouts of a prompt; default 2 as published.
      high: most rollouts of a prompt; default 128 as published (at most B are used).
      decay: weight of the old estimate when a prompt is tried again, in [0, 1); 0 is
        the success rate at its last visit.
      target: chance of a mixed group from which the rest of the budget goes to prompts
        with p = 0; 1: never.

    Returns:
      Transform (P,) shares -> (P,) shares, whole counts over B; reads ``prompt`` of the
      plan's rows, and after the update ``reward``. State: success rate and visits of
      each data-set prompt. Unvisited prompts get B // P rollouts.

    Raises:
      ValueError: low > high.

    Reference: Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget
      Allocation, 2025, arXiv 2509.25849 [149].

    Deviations: greedy by marginal gain instead of dynamic programming (V is concave in
      n >= 1, so both are exact); when low · P > B the split is uniform.

    Status: paper
    """
    checks.bounded("low", low, 1, high)
    checks.bounded("decay", decay, 0, 1)

    def init(value):
        zero = jnp.zeros(value.shape, jnp.float32)
        return {"rate": zero, "seen": jnp.zeros(value.shape, bool)}

    def update(value, state, batch, key):
        if batch.get("reward") is not None:
            n, success = success_counts(batch, state["rate"].shape[0])
            n, success = n.astype(jnp.float32), success.astype(jnp.float32)
            fresh = success / jnp.maximum(n, 1)
            kept = jnp.where(state["seen"], decay, 0.0)
            rate = jnp.where(n > 0, kept * state["rate"] + (1 - kept) * fresh,
                             state["rate"])  # fmt: skip
            return value, {"rate": rate, "seen": state["seen"] | (n > 0)}
        total, prompts = batch.rows, batch["candidates"]
        p, new = state["rate"][prompts], ~state["seen"][prompts]
        counts = allocate(p, new, total, low, min(high, total), target)
        return counts.astype(value.dtype) / total, state

    return Transform(init, update)
