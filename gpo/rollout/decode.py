"""The sampler and the scorer: rollouts from a model, and log-probs of given rollouts.

Both prefill each context once, let its rollouts attend to it, and see logits one token
of B rows at a time or in chunks; (B, T, V) never exists.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.base import Transform
from gpo.batch import Batch, Plan
from gpo.models.decoder import Model, fresh, reserve

BLOCK = 256  # of the two-level inverse CDF; about the root of a large vocabulary


class Draw(NamedTuple):
    """One token of each row: ids, log-probs and entropy of the distribution drawn from,
    and the ids of its support (None where nothing was cut)."""

    token: Any
    logp: Any
    entropy: Any
    support: Any


def inverse_cdf(weights, uniform):
    """Index i with ``Σ_{j<i} w_j <= u Σ_j w_j < Σ_{j<=i} w_j``, in two levels.

    Costs two passes over the weights; `jax.random.categorical` needs one Gumbel draw a
    vocabulary entry, as much as all matrix products of a small model's decode step.

    Args:
      weights: (B, V) non-negative, some positive in each row.
      uniform: (B,) in [0, 1).

    Returns:
      (B,) int32; never an entry of weight 0.
    """
    rows, size = weights.shape
    pad = -size % BLOCK
    blocks = jnp.pad(weights, ((0, 0), (0, pad))).reshape(rows, -1, BLOCK)
    mass = jnp.sum(blocks, axis=2)
    edge = jnp.cumsum(mass, axis=1)
    goal = uniform * edge[:, -1]
    block = _first_beyond(edge, mass, goal)
    picked = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    before = jnp.take_along_axis(edge - mass, block[:, None], axis=1)
    inner = _first_beyond(before + jnp.cumsum(picked, axis=1), picked, goal)
    return block * BLOCK + inner


def _first_beyond(edge, weights, goal):
    """First index whose edge exceeds the goal, but at most the last positive weight."""
    found = jnp.sum(edge <= goal[:, None], axis=1, dtype=jnp.int32)
    at = jnp.arange(weights.shape[1], dtype=jnp.int32)[None]
    return jnp.minimum(found, jnp.max(jnp.where(weights > 0, at, 0), axis=1))


def log_distribution(logits):
    """(log-normaliser, entropy) of each row of (B, V) logits, -inf entries allowed."""
    top = jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    shifted = logits - top
    e = jnp.exp(shifted)
    total = jnp.sum(e, axis=1)
    mean = jnp.sum(e * jnp.where(e > 0, shifted, 0), axis=1) / total
    return top[:, 0] + jnp.log(total), jnp.log(total) - mean


def draw(logits, uniform, support: int | None = None) -> Draw:
    """Draws a token a row.

    Args:
      logits: (B, V) float32; -inf entries are never drawn.
      uniform: (B,) in [0, 1).
      support: W: keep the ids of the W most likely tokens, and draw among those only.

    Returns:
      `Draw`; its support (B, W) has -1 where fewer than W tokens are left.
    """
    ids = None
    if support is not None:
        logits, ids = jax.lax.top_k(logits, min(support, logits.shape[1]))
        ids = jnp.where(logits > -jnp.inf, ids, -1)
    normaliser, entropy = log_distribution(logits)
    weights = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    index = inverse_cdf(weights, uniform)
    logp = jnp.take_along_axis(logits, index[:, None], axis=1)[:, 0] - normaliser
    token = index if ids is None else jnp.take_along_axis(ids, index[:, None], 1)[:, 0]
    return Draw(token, logp, entropy, ids)


class Sampler(NamedTuple):
    """How rollouts are made, with state between steps (partial rollouts, caches).

    ======  ==========================================================================
    init    ``() -> state``
    sample  ``(params, plan, key, logits_state, state) -> (Batch, logits_state, state)``
    ======  ==========================================================================
    """

    init: Callable[[], Any]
    sample: Callable[..., tuple[Batch, Any, Any]]


def plain(model: Model, **settings) -> Sampler:
    """The sampler that finishes every rollout in its step: `sample`, without state.

    Args:
      model: the policy.
      **settings: ``length``, ``stop``, ``logits`` and ``support`` of `sample`.

    Returns:
      A `Sampler`.

    Reference: library word.
    """

    def run(params, plan, key, logits_state, state):
        batch, logits_state = sample(
            model, params, plan, key, state=logits_state, **settings
        )
        return batch, logits_state, state

    return Sampler(lambda: (), run)


def cuts_support(logits: Transform, vocab: int) -> bool:
    """Whether a logits transform removes tokens, found by trying it on steep logits."""
    z = -jnp.arange(vocab, dtype=jnp.float32)[None]
    with jax.ensure_compile_time_eval():
        out, _ = logits.update(
            z, logits.init(z), Batch.of(live=jnp.ones(1, bool)), jax.random.key(0)
        )
        return bool(jnp.any(out == -jnp.inf))


def working_copy(model: Model, params):
    """The weights in the dtype of the model's activations, converted once.

    Inside a decoding loop every step would convert them again. Norm scales stay: they
    are used in float32. The gradient reaches the parameters in their own dtype.
    """
    dtype = jnp.dtype(model.config.dtype)

    def cast(path, x):
        kept = jax.tree_util.keystr(path[-1:], simple=True) == "scale"
        return (
            x if kept or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)
        )

    return jax.tree_util.tree_map_with_path(cast, params)


def prefill(model: Model, params, plan: Plan, remat=None):
    """Reads each context once: (memory of C rows, (C, D) hidden of the last tokens)."""
    at = jnp.arange(plan.contexts.shape[1], dtype=jnp.int32)[None]
    position = jnp.where(at < plan.length[:, None], at, -1)
    hidden, memory = model.extend(params, plan.contexts, position, fresh(), remat)
    last = jnp.maximum(plan.length - 1, 0)[:, None, None]
    return memory, jnp.take_along_axis(hidden, last, axis=1)[:, 0]


def row_keys(key, plan: Plan):
    """Each rollout's own key, folded from its identity, wherever it stands."""
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(plan.row)


def sample(
    model: Model,
    params,
    plan: Plan,
    key,
    *,
    length: int,
    stop: tuple[int, ...] = (),
    logits: Transform | None = None,
    state=(),
    support: int | None = None,
) -> tuple[Batch, Any]:
    """Rollouts of a plan, in one loop that ends when every row has.

    Args:
      model: the policy.
      params: its parameters.
      plan: what to sample.
      key: of this step; each row draws from ``fold_in(key, row)``.
      length: T, the most new tokens.
      stop: ids that end a row; the ending token belongs to it and is trained.
      logits: a logits slot, and ``state`` its state.
      support: W, kept where the logits slot cuts the support (`cuts_support`).

    Returns:
      Batch with tokens, length, mask, live, truncated, ``old_logp`` under the
      distribution that was sampled, ``old_entropy`` and, with ``support``, the ids
      (B, T, W) it had; and the new state of the slot.

    Raises:
      ValueError: no room for a token.

    Reference: library word.
    """
    checks.bounded("length", length, 1)
    rows = plan.context.shape[0]
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (length,)))(row_keys(key, plan))
    # a table, so that a task may name many tokens that end a row
    ends = (
        jnp.zeros(model.config.vocab, bool).at[jnp.asarray(stop, jnp.int32)].set(True)
    )
    params = working_copy(model, params)
    prefix, last = prefill(model, params, plan)
    columns = {
        "tokens": jnp.zeros((rows, length), jnp.int32),
        "old_logp": jnp.zeros((rows, length), jnp.float32),
        "old_entropy": jnp.zeros((rows, length), jnp.float32),
    }
    if support is not None:
        width = min(support, model.config.vocab)
        columns["support"] = jnp.full((rows, length, width), -1, jnp.int32)
    start = plan.length[plan.context]

    def put(carry, z, t):
        """Draws token t of the rows that are still running."""
        columns, alive, size, state = carry
        if logits is not None:
            seen = Batch(plan=plan, tokens=columns["tokens"], length=size, live=alive)
            seen = seen.replace(position=t)
            z, state = logits.update(z, state, seen, jax.random.fold_in(key, -1 - t))
        drawn = draw(z, uniform[:, t], support)
        new = {"tokens": drawn.token, "old_logp": drawn.logp}
        new |= {"old_entropy": drawn.entropy, "support": drawn.support}
        columns = {
            name: jax.lax.dynamic_update_index_in_dim(
                column,
                jnp.where(alive.reshape(-1, *[1] * (new[name].ndim - 1)), new[name],
                          jnp.zeros_like(new[name])),
                t, 1,
            )
            for name, column in columns.items()
        }  # fmt: skip
        size = size + alive.astype(jnp.int32)
        return columns, alive & ~ends[drawn.token], size, state

    def more(loop):
        t, _, (_, alive, _, _) = loop
        return (t < length) & jnp.any(alive)

    def body(loop):
        t, memory, carry = loop
        token = jax.lax.dynamic_slice_in_dim(carry[0]["tokens"], t - 1, 1, axis=1)
        position = jnp.where(carry[1], start + t - 1, -1)[:, None]
        hidden, memory = model.extend(params, token, position, memory)
        return t + 1, memory, put(carry, model.logits(params, hidden[:, 0]), t)

    alive, size = jnp.ones(rows, bool), jnp.zeros(rows, jnp.int32)
    z = model.logits(params, last)[plan.context]
    carry = put((columns, alive, size, state), z, jnp.int32(0))
    memory = reserve(
        model.config, rows, max(length - 1, 1), prefix, plan.context, plan.width
    )
    _, _, carry = jax.lax.while_loop(more, body, (jnp.int32(1), memory, carry))
    columns, alive, size, state = carry
    at = jnp.arange(length, dtype=jnp.int32)[None]
    batch = Batch(
        plan=plan,
        length=size,
        mask=at < size[:, None],
        live=jnp.ones(rows, bool),
        truncated=alive,
    )
    return batch.replace(**columns), state


def token_logp(
    model: Model,
    params,
    batch: Batch,
    *,
    logits: Transform | None = None,
    state=(),
    chunk: int = 512,
    remat=None,
):
    """Log-probs and entropies of a batch's tokens, differentiable in the parameters.

    Each context is read once, with gradient; its rollouts attend to it. Under a logits
    slot the distribution is the one that was sampled: temperatures apply, and cuts are
    replayed from the column ``support``.

    Args:
      model: the policy.
      params: its parameters.
      batch: with plan, tokens and, where the support was cut, ``support`` (B, T, W).
      logits: the logits slot, and ``state`` its state.
      chunk: tokens whose logits exist at once; they are recomputed for the gradient.
      remat: a rematerialisation policy for the layers, True, or None.

    Returns:
      ``(logp, entropy)``, (B, T) float32 each, in nats.

    Reference: library word.
    """
    plan, tokens = batch.plan, batch["tokens"]
    rows, length = tokens.shape
    params = working_copy(model, params)
    prefix, last = prefill(model, params, plan, remat)
    hidden = last[plan.context][:, None]
    if length > 1:
        at = jnp.arange(length - 1, dtype=jnp.int32)[None]
        position = plan.length[plan.context][:, None] + at
        position = jnp.where(at < batch["length"][:, None], position, -1)
        memory = fresh(prefix, plan.context, plan.width)
        later, _ = model.extend(params, tokens[:, :-1], position, memory, remat)
        hidden = jnp.concatenate([hidden, later], axis=1)

    def one(h, token, ids, t):
        """One token of every row: (B, D) -> log-prob and entropy."""
        z = model.logits(params, h)
        if logits is not None:
            seen = Batch(plan=plan, tokens=tokens, length=batch["length"])
            seen = seen.replace(position=t, live=jnp.ones(rows, bool))
            seen = seen if ids is None else seen.replace(support=ids)
            z, _ = logits.update(z, state, seen, None)
        own = jnp.take_along_axis(z, token[:, None], axis=1)[:, 0]
        if ids is not None:
            kept = jnp.take_along_axis(z, jnp.maximum(ids, 0), axis=1)
            z = jnp.where(ids >= 0, kept, -jnp.inf)
            # rows that were not sampled (padding) have no support: keep them finite
            z = jnp.where(jnp.any(ids >= 0, 1, keepdims=True), z, 0)
        normaliser, entropy = log_distribution(z)
        return own - normaliser, entropy

    step = max(1, min(chunk // rows, length))
    count = -(-length // step)

    def split(x):
        """(B, T, ...) -> (chunks, step, B, ...), padded at the end."""
        x = jnp.moveaxis(x, 1, 0)
        pad = [(0, count * step - length)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, pad).reshape(count, step, *x.shape[1:])

    support = batch.get("support")
    times = jnp.arange(count * step, dtype=jnp.int32).reshape(count, step)
    ids = None if support is None else split(support)
    parts = (split(hidden), split(tokens), ids, times)
    out = jax.lax.map(jax.checkpoint(lambda xs: jax.vmap(one)(*xs)), parts)

    def join(x):
        return jnp.moveaxis(x.reshape(count * step, rows)[:length], 0, 1)

    return jax.tree.map(join, out)
