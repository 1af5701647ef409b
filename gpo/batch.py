"""What flows through a step: the `Plan` of what to sample, and the `Batch` of rollouts.

Letters: N prompts in the data set, P prompts in a step, C contexts (distinct prefixes)
in a step, B rollouts, T continuation tokens, L prefix tokens, S turns, K rewards,
V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from gpo import checks, segment

Keys = str | tuple[str, ...]  # what `Batch.key` takes: columns that define a segment


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be sampled: B rows, before any token exists.

    ====================  ======  ====================================================
    field                 shape   meaning
    ====================  ======  ====================================================
    contexts              (C, L)  token ids of the distinct prefixes, right-padded
    length                (C,)    tokens in each context
    context               (B,)    row -> context
    prompt                (B,)    row -> data set row; keys long-lived statistics
    group                 (B,)    row -> comparison key of this step
    row                   (B,)    identity of the row: its random key is folded from it
    width                 static  rows per context where row b belongs to context
                                  ``b // width``; None when the layout is ragged
    population            static  N, prompts in the data set; None when unknown
    ====================  ======  ====================================================
    """

    contexts: Any
    length: Any
    context: Any
    prompt: Any
    group: Any
    row: Any
    width: int | None = dataclasses.field(default=None, metadata={"static": True})
    population: int | None = dataclasses.field(default=None, metadata={"static": True})

    def replace(self, **columns) -> "Plan":
        """Copy with some fields replaced."""
        return dataclasses.replace(self, **columns)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Rollouts in row-aligned columns; every field may be None.

    ===========  ================  ===================================================
    field        shape             meaning
    ===========  ================  ===================================================
    plan         Plan              what was sampled
    tokens       (B, T) int        continuation tokens
    length       (B,) int          continuation tokens that count, ending token included
    mask         (B, T) bool       True on tokens the policy chose
    live         (B,) bool         False: rejected, failed or not scored; never votes
    truncated    (B,) bool         cut off by the length limit
    old_logp     (B, T)            under the distribution that sampled
    logp         (B, T)            of the policy in training, set inside the gradient
    entropy      (B, T)            of the policy in training, set inside the gradient
    reward       (B,) or (B, K)
    advantage    (B,) or (B, T)
    weight       (B, T)            of each token's gain in the loss
    extras       dict              ref_logp, old_entropy, turn, turn_mask, answer, ...
    whole        static            False in a microbatch that may split a group
    ===========  ================  ===================================================

    `batch["x"]` finds a field, an extra or a column of the plan.
    """

    plan: Any = None
    tokens: Any = None
    length: Any = None
    mask: Any = None
    live: Any = None
    truncated: Any = None
    old_logp: Any = None
    logp: Any = None
    entropy: Any = None
    reward: Any = None
    advantage: Any = None
    weight: Any = None
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    whole: bool = dataclasses.field(default=True, metadata={"static": True})

    @classmethod
    def of(cls, **columns) -> "Batch":
        """A batch from plain columns; names that are no field become extras."""
        return cls().replace(**columns)

    def replace(self, **columns) -> "Batch":
        """Copy with columns replaced; names that are no field go to ``extras``."""
        names = {f.name for f in dataclasses.fields(self)}
        fields = {k: v for k, v in columns.items() if k in names}
        extras = {k: v for k, v in columns.items() if k not in names}
        extras = {**fields.pop("extras", self.extras), **extras}
        return dataclasses.replace(self, extras=extras, **fields)

    def get(self, name: str, default=None):
        """Column ``name``, or ``default`` where the batch has none."""
        found = getattr(self, name, None) if name in _FIELDS else None
        if found is None:
            found = self.extras.get(name)
        if found is None and name in _PLAN_COLUMNS:
            found = getattr(self.plan, name, None)
        return default if found is None else found

    def __getitem__(self, name: str):
        found = self.get(name)
        if found is None:
            raise ValueError(
                f"this batch has no column {name!r}; it has {self.columns()}. "
                f"Pass it as {name}=..., or compute it with an earlier part."
            )
        return found

    def columns(self) -> list[str]:
        """Names of the columns that are present."""
        names = (*_FIELDS, *self.extras, *_PLAN_COLUMNS)
        return sorted({n for n in names if self.get(n) is not None})

    @property
    def rows(self) -> int:
        """B, the number of rollouts."""
        # extras last: a step's (P,) candidates, say, are not row-aligned
        rows = [self.get(n) for n in (*_FIELDS, *_PLAN_COLUMNS, *self.extras)]
        rows = [c for c in rows if c is not None and jnp.ndim(c) > 0]
        checks.require(
            bool(rows), "an empty batch has no rows: pass a column, live=..."
        )
        return rows[0].shape[0]

    def shape(self, level: str, like=None) -> tuple[int, ...]:
        """(B,), (B, S) or (B, T): the shape of the level ``rollout|turn|token``."""
        if like is not None:
            return tuple(like.shape)
        if level == "rollout":
            return (self.rows,)
        if level == "turn":
            return tuple(self["turn_mask"].shape)
        checks.require(
            level == "token",
            f"level must be 'rollout', 'turn' or 'token', received {level!r}",
        )
        known = ("mask", "logp", "old_logp", "tokens", "entropy", "weight")
        columns: list[Any] = [self.get(n) for n in known if self.get(n) is not None]
        checks.require(
            bool(columns), f"a token-level part needs one of {known}, none was passed"
        )
        return tuple(columns[0].shape)

    def key(self, by, level: str = "rollout", like=None) -> Int[Array, "..."]:
        """Dense segment key from columns.

        Args:
          by: a column name or a tuple of names; ``()`` is one segment for all, and
            ``"row"`` the row itself.
          level: ``rollout`` (B,), ``turn`` (B, S) or ``token`` (B, T).
          like: an array whose shape to take where the batch has no such column.

        Returns:
          int32 keys in ``[0, size)``, equal where all named columns agree.

        Raises:
          ValueError: a named column is missing or of another level; or the key couples
            rows in a microbatch that may split groups.
        """
        by = (by,) if isinstance(by, str) else tuple(by)
        checks.require(
            self.whole or "row" in by,
            f"a part asked for the key {by}, which couples rows, inside a microbatch "
            "that may split groups: choose microbatches so that each holds whole "
            "groups (a divisor of the number of prompts, groups of equal size)",
        )
        shape = self.shape(level, like)
        if not by:
            return jnp.zeros(shape, jnp.int32)
        index = jnp.arange(shape[0], dtype=jnp.int32)
        columns = [index if n == "row" else self[n] for n in by]
        return segment.dense(*(spread(c, shape) for c in columns))

    def valid(self, level: str = "rollout", like=None) -> Bool[Array, "..."]:
        """Which elements of a level vote: live rows; in them, unmasked tokens or turns.

        A row without a single unmasked token belongs to no set.
        """
        shape = self.shape(level, like)
        rows = jnp.ones(shape[:1], bool) if self.live is None else self.live
        if level == "rollout":
            tokens = None if self.mask is None else self.mask.astype(bool).any(-1)
            return spread(rows if tokens is None else rows & tokens, shape)
        own = self.mask if level == "token" else self["turn_mask"]
        rows = spread(rows, shape)
        return rows if own is None else rows & own.astype(bool)

    def token(self, name: str, like=None):
        """Column ``name`` at token level (B, T): rows spread, invalid slots zeroed."""
        shape = self.shape("token", like)
        column = spread(self[name], shape)
        return jnp.where(self.valid("token", like), column, jnp.zeros_like(column))


_FIELDS = tuple(
    f.name
    for f in dataclasses.fields(Batch)
    if f.name not in ("plan", "extras", "whole")
)
_PLAN_COLUMNS = ("context", "prompt", "group", "row")


def spread(column, shape: tuple[int, ...]):
    """Broadcasts a rollout-level (B,) column to (B, ...); others must match exactly."""
    given, shape = tuple(jnp.shape(column)), tuple(shape)
    checks.require(
        given in (shape, shape[:1]),
        f"a column of shape {given} does not fit rows of shape {shape}: it must have "
        f"shape {shape[:1]} or {shape}",
    )
    if given != shape:
        column = jnp.expand_dims(column, range(1, len(shape)))
    return jnp.broadcast_to(column, shape)
