"""What rows have read so far: keys and values, own and of a shared prefix."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpo import checks
from gpo.models.config import Config


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """Keys and values of R rows in M slots, and the shared prefix they continue.

    ========  ======================  ================================================
    field     shape                   meaning
    ========  ======================  ================================================
    k, v      (layers, R, Hkv, M, d)  own slots; None before anything was read
    position  (R, M) int32            position of each slot's token; -1: holds no token
    filled    () int32                slots written so far, the same for all rows;
                                      None: no spare slots, `extend` adds new ones
    prefix    Memory of C rows        shared and read only; None without a prefix
    context   (R,) int32              row -> row of the prefix
    width     static int              R == C * width and row r reads prefix row
                                      ``r // width``; None when the layout is ragged
    ========  ======================  ================================================
    """

    k: Any = None
    v: Any = None
    position: Any = None
    filled: Any = None
    prefix: "Memory | None" = None
    context: Any = None
    width: int | None = dataclasses.field(default=None, metadata={"static": True})

    def replace(self, **fields) -> "Memory":
        """Copy with some fields replaced."""
        return dataclasses.replace(self, **fields)


def fresh(prefix: Memory | None = None, context=None, width: int | None = None):
    """A memory without own slots: it grows by exactly the tokens it reads.

    For prefill (the result is a prefix) and for teacher-forced learning.

    Args:
      prefix: memory of C contexts to continue, or None.
      context: (R,) row -> context; needed where ``width`` is None.
      width: rows per context of a uniform layout, where row r reads ``r // width``.
    Returns:
      `Memory`.
    Raises:
      ValueError: a prefix without ``context`` and ``width``, or one that nothing was
        read into.
    Reference: library word.
    """
    _check_prefix(prefix, context, width)
    return Memory(prefix=prefix, context=context, width=width)


def reserve(
    config: Config,
    rows: int,
    slots: int,
    prefix: Memory | None = None,
    context=None,
    width: int | None = None,
) -> Memory:
    """A memory with ``slots`` empty own slots a row, for decoding inside a loop.

    `extend` writes at ``filled`` and keeps all shapes; more tokens than slots overwrite
    the last ones, so reserve as many as will be read.

    Args:
      config: of the model.
      rows: R.
      slots: M, tokens that will be read.
      prefix, context, width: as in `fresh`.
    Returns:
      `Memory` of zeros in ``config.dtype``.
    Raises:
      ValueError: as in `fresh`, or ``rows`` does not fit the prefix.
    Reference: library word.
    """
    _check_prefix(prefix, context, width)
    shape = (config.layers, rows, config.kv_heads, slots, config.head_dim)
    memory = Memory(
        k=jnp.zeros(shape, config.dtype),
        v=jnp.zeros(shape, config.dtype),
        position=jnp.full((rows, slots), -1, jnp.int32),
        filled=jnp.zeros((), jnp.int32),
        prefix=prefix,
        context=context,
        width=width,
    )
    check_rows(memory, rows)
    return memory


def _check_prefix(prefix, context, width) -> None:
    if prefix is None:
        return
    checks.require(
        context is not None or width is not None,
        "a prefix needs width=... (rows per context) or context=... (row -> context)",
    )
    checks.require(
        prefix.k is not None and prefix.prefix is None,
        "a prefix must hold tokens of its own and have no prefix itself: extend a "
        "fresh() memory with the contexts first",
    )


def check_rows(memory: Memory, rows: int) -> None:
    """Raises unless ``rows`` rows fit the memory and its prefix."""
    if memory.position is not None:
        have = memory.position.shape[0]
        checks.require(
            have == rows, f"{rows} rows of tokens for a memory of {have} rows"
        )
    if memory.prefix is None:
        return
    contexts = memory.prefix.position.shape[0]
    if memory.width is not None:
        checks.require(
            rows == contexts * memory.width,
            f"{rows} rows are not {contexts} contexts of width {memory.width}: pass "
            "width=None and context=... for a ragged layout",
        )
    else:
        checks.require(
            memory.context.shape == (rows,),
            f"context has shape {memory.context.shape}, the tokens have {rows} rows",
        )


def write(memory: Memory, k, v, position) -> Memory:
    """The memory after new tokens: appended, or written at ``filled``.

    All layers are written at once, after the scan over layers: a memory carried through
    that scan would be copied whole at every decoded token.
    """
    if memory.filled is None:
        if memory.k is not None:
            k = jnp.concatenate([memory.k, k], 3)
            v = jnp.concatenate([memory.v, v], 3)
            position = jnp.concatenate([memory.position, position], 1)
        return memory.replace(k=k, v=v, position=position)
    new, slots = position.shape[1], memory.position.shape[1]
    checks.require(
        new <= slots, f"{new} new tokens for {slots} slots: reserve more slots"
    )
    put = jax.lax.dynamic_update_slice_in_dim
    return memory.replace(
        k=put(memory.k, k, memory.filled, 3),
        v=put(memory.v, v, memory.filled, 3),
        position=put(memory.position, position, memory.filled, 1),
        filled=memory.filled + new,
    )


class View(NamedTuple):
    """How R rows of queries meet keys that C rows of a memory hold.

    =====  ==================  ====================================================
    mask   (C, 1, 1 or Q, L)   which keys are seen; Q when the view is the new tokens
    width  static int          rows of queries contracted with one row of keys
    owner  (blocks,) or None   ragged: block of queries -> row of the memory
    place  (R,) or None        ragged: row -> slot among the blocks' queries
    =====  ==================  ====================================================
    """

    mask: Any
    width: int = 1
    owner: Any = None
    place: Any = None

    def keys(self, x):
        """(C, ...) keys or masks to one row a block; no copy in a uniform layout."""
        return x if self.owner is None else x[self.owner]

    def gather(self, q):
        """(R, H, Q, d) queries to (blocks, H, width*Q, d)."""
        if self.place is not None:
            blocks = self.owner.shape[0]
            room = jnp.zeros((blocks * self.width, *q.shape[1:]), q.dtype)
            q = room.at[self.place].set(q, unique_indices=True)
        if self.width == 1:
            return q
        rows, heads, queries, d = q.shape
        q = q.reshape(rows // self.width, self.width, heads, queries, d)
        return q.swapaxes(1, 2).reshape(-1, heads, self.width * queries, d)

    def spread(self, x):
        """(blocks, H, width*Q, e) results back to (R, H, Q, e)."""
        if self.width > 1:
            blocks, heads, queries, e = x.shape
            x = x.reshape(blocks, heads, self.width, queries // self.width, e)
            x = x.swapaxes(1, 2).reshape(blocks * self.width, heads, -1, e)
        return x if self.place is None else x[self.place]


def views(memory: Memory, position, repeat: int) -> list[View]:
    """The new tokens, then own slots, then the prefix, as far as they exist.

    Args:
      memory: what was read before.
      position: (R, S) of the new tokens.
      repeat: query heads per key head; queries are ordered (S, repeat).
    Returns:
      One `View` each, in the order of `stored` after the new tokens.
    """
    known = position >= 0
    causal = position[:, None, :] <= position[:, :, None]
    seen = jnp.repeat(causal & known[:, None, :], repeat, 1)
    found = [View(seen[:, None])]
    if memory.k is not None:
        found.append(View((memory.position >= 0)[:, None, None]))
    if memory.prefix is not None:
        mask = (memory.prefix.position >= 0)[:, None, None]
        found.append(
            _blocks(mask, memory.context)
            if memory.width is None
            else View(mask, memory.width)
        )
    return found


def stored(memory: Memory) -> tuple:
    """Keys and values (layers, ...) of own slots and prefix, as far as they exist."""
    own = () if memory.k is None else ((memory.k, memory.v),)
    prefix = memory.prefix
    return own if prefix is None else (*own, (prefix.k, prefix.v))


def _blocks(mask, context) -> View:
    """Lays ragged rows out in at most 2C blocks of ceil(R / C) rows of one context.

    A context with n rows takes ``ceil(n / width)`` blocks, ``(R - C) / width + C <= 2C``
    in all: keys are copied at most twice, whatever the group size.
    """
    contexts, rows = mask.shape[0], context.shape[0]
    width = -(-rows // contexts)
    order = jnp.argsort(context, stable=True)
    at = jnp.arange(rows, dtype=jnp.int32)
    count = jax.ops.segment_sum(jnp.ones_like(context), context, contexts)
    taken = -(-count // width)
    first = jnp.cumsum(taken) - taken
    start = jnp.cumsum(count) - count
    rank = jnp.zeros_like(at).at[order].set(at) - start[context]
    place = (first[context] + rank // width) * width + rank % width
    blocks = (rows - contexts) // width + contexts
    block = jnp.arange(blocks, dtype=jnp.int32)
    owner = jnp.searchsorted(first + taken, block, side="right")
    return View(mask, width, jnp.minimum(owner, contexts - 1), place)
