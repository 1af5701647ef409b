"""Earlier correct answers for groups that found none."""

import jax.numpy as jnp

from gpo import checks, segment
from gpo.base import Transform, part

_STORED = ("tokens", "length", "mask", "truncated")


@part
def reuse(correct: float = 1.0) -> Transform:
    """Puts an earlier correct answer into a group without any.

    When no live row of a group reaches ``correct`` and an earlier answer to the same
    prompt did, the last row of the group is replaced by the latest such answer. Its
    ``old_logp`` is recomputed under the parameters before the update, so its ratio
    starts at 1. Correct answers are stored when they are produced.

    Args:
      correct: least reward of a correct answer.

    Returns:
      Transform Batch -> Batch; reads ``reward`` (B,), ``group`` and a plan with its
      population. Column ``reused`` (B,) marks replaced rows. State: one answer for each
      prompt of the data set.

    Raises:
      ValueError: the plan does not say how many prompts there are.

    Reference: AR3PO: Adaptive Rollout and Response Reuse Policy Optimization, 2025,
      arXiv 2509.25808 [84].

    Deviations: replaces a row instead of appending one (shapes are static); keeps one
      answer a prompt, the latest. The reused row counts as on policy, as in the paper.

    Status: paper
    """

    def init(value):
        n = None if value.plan is None else value.plan.population
        checks.require(
            n is not None, "reuse keeps one answer a prompt: plan.population is unknown"
        )
        columns = {c: value.get(c) for c in _STORED}

        def table(x):
            return jnp.zeros((n, *x.shape[1:]), x.dtype)

        kept = {c: table(x) for c, x in columns.items() if x is not None}
        reward = jnp.zeros((n,), value.reward.dtype)
        return {"rows": kept, "reward": reward, "has": jnp.zeros((n,), bool)}

    def update(batch, state, _, key):
        group, rows = batch.key("group"), batch.valid("rollout")
        prompt = batch["prompt"]
        index = jnp.arange(batch.rows, dtype=jnp.int32)
        right = rows & (batch["reward"] >= correct)
        solved = segment.count(group, right) > 0
        swap = ~solved & state["has"][prompt] & (index == segment.max(index, group))
        # the first correct row of each group is stored; the others are sent out of range
        first = right & (index == segment.min(index, group, right))
        slot = jnp.where(first, prompt, state["has"].shape[0])

        def mix(past, now):
            chosen = swap.reshape(swap.shape + (1,) * (now.ndim - 1))
            return jnp.where(chosen, past[prompt], now)

        def store(past, now):
            return past.at[slot].set(now, mode="drop")

        now = {c: batch.get(c) for c in state["rows"]}
        replaced = {c: mix(state["rows"][c], x) for c, x in now.items()}
        new_state = {
            "rows": {c: store(state["rows"][c], x) for c, x in now.items()},
            "reward": store(state["reward"], batch["reward"]),
            "has": state["has"].at[slot].set(True, mode="drop"),
        }
        live = jnp.ones_like(swap) if batch.live is None else batch.live
        batch = batch.replace(
            reward=mix(state["reward"], batch["reward"]),
            live=live | swap,
            reused=swap,
            recompute=swap | batch.get("recompute", jnp.zeros_like(swap)),
            **replaced,
        )
        return batch, new_state

    return Transform(init, update)
