"""Advantages for prompts that were asked in several contexts."""

import jax.numpy as jnp

from gpo import segment
from gpo.advantage.group import keyed
from gpo.base import Transform, part, stateless


@part
def inter_intra(ratio: float = 1.1) -> Transform:
    """Within-context and between-context parts of the reward, for hinted rows.

    Hinted rows of context c: ``a_b = (r_b - mean_c) + ratio · (mean_c - mean_prompt)``;
    rows under the plain prompt: ``a_b = r_b - mean_prompt``.

    Args:
      ratio: weight of the between-context part; 1 is the pooled group baseline, 0 the
        baseline of each context. Default 1.1 as released.

    Returns:
      Transform (B,) -> (B,); reads ``group`` and ``context``. A row is under the plain
      prompt where ``context == group``, as `gpo.context.hints` lays them out.

    Reference: NudgeRL [90], tally0818/NudgeRL.

    Deviations: none; contexts without rows are skipped.

    Status: code
    """

    def mixed(value, batch):
        key, where = keyed(value, batch, "group")
        own, _ = keyed(value, batch, ("group", "context"))
        x = jnp.where(where, value, 0)
        pooled = segment.mean(x, key, where)
        mine = segment.mean(x, own, where)
        hinted = (x - mine) + ratio * (mine - pooled)
        plain = batch["context"] == batch["group"]
        flat = segment.constant(x, key, where) | ~where
        return jnp.where(flat, 0, jnp.where(plain, x - pooled, hinted))

    return stateless(mixed)
