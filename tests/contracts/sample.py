"""One small ragged batch for all contracts, and the ways in which it is disturbed."""

import jax
import jax.numpy as jnp
import numpy as np

from gpo.batch import Batch, Plan

# sizes differ, so that an axis is known by its length
ROWS, TOKENS, VOCAB, POPULATION, CONTEXTS = 16, 5, 11, 6, 4
GROUP = np.array([0, 1, 2, 0, 1, 3, 0, 2, 1, 0, 2, 1, 3, 0, 1, 2], np.int32)
LENGTH = np.array([5, 2, 3, 1, 4, 5, 2, 3, 0, 5, 1, 3, 4, 2, 5, 3], np.int32)
DEAD = (4, 7)


def batch(seed: int = 0) -> Batch:
    """16 rows in groups of 5, 5, 4 and 2; row 8 has no token, rows 4 and 7 are dead."""
    rng = np.random.default_rng(seed)

    def tokens(low, high):
        return jnp.asarray(rng.uniform(low, high, (ROWS, TOKENS)), jnp.float32)

    def rows(*shape):
        return jnp.asarray(rng.normal(size=(ROWS, *shape)), jnp.float32)

    plan = Plan(
        contexts=jnp.asarray(rng.integers(3, 9, (CONTEXTS, 3)), jnp.int32),
        length=jnp.asarray([3, 2, 3, 1], jnp.int32),
        context=jnp.asarray(GROUP),
        prompt=jnp.asarray(np.array([4, 0, 5, 2], np.int32)[GROUP]),
        group=jnp.asarray(GROUP),
        row=jnp.arange(ROWS, dtype=jnp.int32),
        population=POPULATION,
    )
    logp = tokens(-3, -0.1)
    return Batch(
        plan=plan,
        tokens=jnp.asarray(rng.integers(0, VOCAB, (ROWS, TOKENS)), jnp.int32),
        length=jnp.asarray(LENGTH),
        mask=jnp.arange(TOKENS, dtype=jnp.int32)[None] < jnp.asarray(LENGTH)[:, None],
        live=~jnp.isin(plan.row, jnp.asarray(DEAD, jnp.int32)),
        truncated=jnp.asarray(LENGTH == TOKENS),
        old_logp=logp + tokens(-0.5, 0.5),
        logp=logp,
        entropy=tokens(0.1, 2),
        reward=rows(),
        advantage=rows(),
        weight=tokens(0.1, 1),
        extras={
            "ref_logp": logp + tokens(-0.5, 0.5),
            "old_entropy": tokens(0.1, 2),
            "rewards": rows(2),
            "demo": jnp.asarray(rng.integers(0, VOCAB, (ROWS, 4)), jnp.int32),
            "demo_length": jnp.full((ROWS,), 3, jnp.int32),
        },
    )


def permute(tree, order):
    """The same with rows in another order."""
    return jax.tree.map(
        lambda x: x[order] if jnp.ndim(x) and x.shape[0] == ROWS else x, tree
    )


def relabel(data: Batch) -> Batch:
    """Other names for the groups, and for the contexts in the same way."""

    def rename(ids):
        return 40 - 3 * ids

    plan = data.plan
    return data.replace(
        plan=plan.replace(group=rename(plan.group), context=rename(plan.context))
    )


def invalid(x, data: Batch):
    """Where an array holds nothing: masked tokens, rows that are not live."""
    if data.mask is not None and jnp.shape(x) == data.mask.shape:
        return ~data.valid("token")
    if data.live is not None and jnp.ndim(x) and x.shape[0] == data.rows:
        return jnp.broadcast_to(~data.live.reshape(-1, *[1] * (x.ndim - 1)), x.shape)
    return jnp.zeros(jnp.shape(x), bool)


def corrupt(tree, data: Batch, junk: float):
    """The same with junk in every float that must not matter."""

    def spoil(x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.where(invalid(x, data), jnp.asarray(junk, x.dtype), x)

    return jax.tree.map(spoil, tree)


def edges(data: Batch) -> dict[str, Batch]:
    """Batches on which divisions by zero like to hide."""
    plan, ones = data.plan, jnp.ones((ROWS,), jnp.float32)
    other = jnp.where(plan.group == 1, 0.3, 0.7).astype(jnp.float32)

    def rewards(reward):
        return data.replace(reward=reward, rewards=jnp.stack([reward] * 2, axis=1))

    return {
        "single": data.replace(plan=plan.replace(group=plan.row)),
        "equal .7": rewards(0.7 * ones),
        "equal .3": rewards(0.3 * ones),
        "equal in each group": rewards(other),
        "empty mask": data.replace(mask=jnp.zeros_like(data.mask)),
        "all dead": data.replace(live=jnp.zeros_like(data.live)),
        "one alive": data.replace(live=plan.row == 0),
    }


def cast(tree, dtype):
    """The same with all floats of one type."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )
