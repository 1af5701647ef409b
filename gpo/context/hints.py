"""One prompt, several contexts."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gpo import checks
from gpo.base import Transform, part, stochastic


def insert(contexts, length, hint, size: int, at: int):
    """Contexts (P, L) with ``hint`` (H,), of which ``size`` tokens count, put in at
    position ``at``; returns (P, L + H) and the new lengths."""
    width = contexts.shape[1] + hint.shape[0]
    index = jnp.arange(width, dtype=jnp.int32)[None]
    old = jnp.where(index < at, index, index - size)
    taken = jnp.take_along_axis(
        contexts, jnp.clip(old, 0, contexts.shape[1] - 1), axis=1
    )
    inside = (index >= at) & (index < at + size)
    new = jnp.asarray(hint, jnp.int32)[jnp.clip(index[0] - at, 0, hint.shape[0] - 1)]
    length = length + size
    mixed = jnp.where(inside, new[None], taken)
    return jnp.where(index < length[:, None], mixed, 0), length


@part
def hints(
    tokens: Sequence[Sequence[int]], dropout: float = 0.5, at: int = 0
) -> Transform:
    """Asks each prompt with M different hints, and some rows without any.

    The rollouts of a prompt are dealt out to the M hints in equal blocks; each row
    drops its hint with probability ``dropout`` and reads the plain prompt.

    Args:
      tokens: M hints as token ids, none empty.
      dropout: in [0, 1]; default .5 as released.
      at: position at which the hint is put into the prompt (0: before everything);
        every prompt must be at least that long.

    Returns:
      Transform Plan -> Plan with contexts ``[plain prompts; hint 1; ...; hint M]``,
      P each, ``L + max hint`` wide. A row's context is its group where it reads the
      plain prompt. The layout is ragged.

    Raises:
      ValueError: no hint, or an empty one.

    Reference: NudgeRL [90], tally0818/NudgeRL.

    Deviations: M hints for all prompts of the data set, instead of hints written for
      each prompt.

    Status: code
    """
    checks.require(
        len(tokens) > 0 and all(len(h) > 0 for h in tokens),
        f"hints needs one or more non-empty lists of token ids, received {tokens!r}",
    )
    checks.fraction("dropout", dropout)
    width = max(len(h) for h in tokens)
    table = np.zeros((len(tokens), width), np.int32)
    for row, hint in zip(table, tokens, strict=True):
        row[: len(hint)] = hint

    def hinted(plan, batch, key):
        prompts = plan.contexts.shape[0]
        blank = jnp.pad(plan.contexts, ((0, 0), (0, width)))
        pairs = [(blank, plan.length)]
        pairs += [
            insert(plan.contexts, plan.length, h, len(t), at)
            for h, t in zip(table, tokens, strict=True)
        ]
        contexts, length = zip(*pairs, strict=True)
        first = jax.ops.segment_min(plan.row, plan.group, prompts)
        size = jax.ops.segment_sum(jnp.ones_like(plan.group), plan.group, prompts)
        place = plan.row - first[plan.group]
        chosen = place * len(tokens) // jnp.maximum(size[plan.group], 1)

        # drawn by row identity, so that the order of the rows changes nothing
        def draw(row):
            return jax.random.bernoulli(jax.random.fold_in(key, row), dropout)

        dropped = jax.vmap(draw)(plan.row)
        context = plan.group + jnp.where(dropped, 0, (chosen + 1) * prompts)
        return plan.replace(
            contexts=jnp.concatenate(contexts),
            length=jnp.concatenate(length),
            context=context.astype(jnp.int32),
            width=None,
        )

    return stochastic(hinted)
