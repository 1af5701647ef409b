"""Row selection after the advantages are known."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpo import checks, segment
from gpo.base import Transform, part, stateless
from gpo.batch import Batch, Keys


def take(batch: Batch, rows) -> Batch:
    """The batch with only the given rows (an int array), in that order.

    Contexts stay; the layout becomes ragged.
    """
    size = batch.rows

    def pick(x):
        return x[rows] if jnp.ndim(x) and x.shape[0] == size else x

    plan = batch.plan
    if plan is not None:
        columns = ("context", "prompt", "group", "row")
        plan = plan.replace(width=None, **{n: getattr(plan, n)[rows] for n in columns})
    rest = jax.tree.map(pick, batch.replace(plan=None))
    return rest.replace(plan=plan)


def magnitude(batch: Batch):
    """Priority: the row's largest absolute advantage."""
    advantage = jnp.abs(batch["advantage"])
    return advantage if advantage.ndim == 1 else advantage.max(axis=1)


@part
def keep_rows(count: int, priority: Callable = magnitude) -> Transform:
    """Keeps a static number of rows, so that the learner does less work.

    The ``count`` live rows of highest priority, in their old order; ties to the lower
    row. When fewer are live, rows that are not live fill up.

    Args:
      count: rows to keep, 1 <= count <= B.
      priority: ``batch -> (B,)``; default: largest absolute advantage.

    Returns:
      Transform Batch of B rows -> Batch of ``count`` rows.

    Raises:
      ValueError: the batch has fewer rows than ``count``.

    Reference: Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement
      Learning, Xu et al., 2025, arXiv 2504.13818 (the idea; their rule maximises
      variance).

    Status: known
    """
    checks.bounded("count", count, 1)

    def kept(batch, _):
        checks.require(
            count <= batch.rows,
            f"keep_rows({count}) got only {batch.rows} rows: lower count or sample more",
        )
        score = jnp.where(batch.valid("rollout"), priority(batch), -jnp.inf)
        order = jnp.argsort(-score, stable=True)[:count]
        return take(batch, jnp.sort(order))

    return stateless(kept)


@part
def drop_pivot(by: Keys = "group") -> Transform:
    """Takes the median row of each group out of the loss.

    One row a group: the first whose reward is the lower median. The row is marked as
    not live; statistics that were computed before keep its vote.

    Args:
      by: columns that define a group.

    Returns:
      Transform Batch -> Batch; reads ``reward`` (B,).

    Reference: MC-GRPO [3], lotusroot-kim/MC-GRPO.

    Deviations: ties go to the first row (torch leaves it open).

    Status: code
    """

    def dropped(batch, _):
        key, where = batch.key(by), batch.valid("rollout")
        live = jnp.ones_like(where) if batch.live is None else batch.live
        middle = segment.lower_median(batch["reward"], key, where)
        found = where & (batch["reward"] == middle)
        index = jnp.arange(batch.rows, dtype=jnp.int32)
        pivot = found & (index == segment.min(index, key, found))
        return batch.replace(live=live & ~pivot)

    return stateless(dropped)
