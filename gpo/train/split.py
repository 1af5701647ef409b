"""Cutting a batch into minibatches and microbatches, along its contexts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from gpo import checks
from gpo.batch import Batch
from gpo.select.rows import take


class Split(NamedTuple):
    """How a batch falls into equal parts.

    =====  =====================================================================
    units  number of things that are dealt out: contexts, or rows
    rows   ``chosen units -> their row indices``
    part   ``chosen units -> Batch`` of those rows
    =====  =====================================================================
    """

    units: int
    rows: Callable[[Any], Any]
    part: Callable[[Any], Batch]


def split(batch: Batch, parts: int, name: str, in_order: bool = False) -> Split:
    """The coarsest split of a batch into ``parts`` that its layout allows.

    Whole contexts where the layout is uniform and they divide: then the prefix is read
    once and groups stay whole. Else rows, each part with only the contexts it reads; a
    part may then split a group (``whole`` is False).

    Args:
      batch: of B rows.
      parts: how many.
      name: of the argument, for the error.
      in_order: the parts will be consecutive rows, so that a part of one context can
        be known to be so.

    Raises:
      ValueError: ``parts`` does not divide B.
    """
    plan, size = batch.plan, batch.rows
    checks.require(
        size % parts == 0,
        f"{name}={parts} does not divide the {size} rows of a batch: choose a divisor",
    )
    contexts, width = plan.contexts.shape[0], plan.width
    if width is not None and contexts % parts == 0:
        at = jnp.arange(width, dtype=jnp.int32)[None]

        def rows(chosen):
            return (chosen[:, None] * width + at).ravel()

        return Split(contexts, rows, lambda c: _part(batch, rows(c), c, width, True))
    whole = parts == 1
    if width is not None and in_order and parts % contexts == 0:
        each = size // parts
        return Split(
            size,
            lambda chosen: chosen,
            lambda c: _part(batch, c, c[:1] // width, each, whole),
        )
    return Split(size, lambda chosen: chosen, lambda c: _ragged(batch, c, whole))


def _part(batch: Batch, rows, contexts, width: int, whole: bool) -> Batch:
    """Rows that read the given contexts, ``width`` each."""
    part = take(batch, rows)
    own = jnp.arange(contexts.shape[0], dtype=jnp.int32)
    plan = part.plan.replace(
        contexts=part.plan.contexts[contexts],
        length=part.plan.length[contexts],
        context=jnp.repeat(own, width, total_repeat_length=rows.shape[0]),
        width=width,
    )
    return part.replace(plan=plan, whole=batch.whole and whole)


def _ragged(batch: Batch, rows, whole: bool) -> Batch:
    """Any rows, with only the contexts that they read, at most one a row."""
    part = take(batch, rows).replace(whole=batch.whole and whole)
    plan, size = part.plan, rows.shape[0]
    if plan.contexts.shape[0] <= size:
        return part
    used = jnp.unique(plan.context, size=size, fill_value=jnp.max(plan.context))
    local = jnp.searchsorted(used, plan.context).astype(jnp.int32)
    return part.replace(
        plan=plan.replace(
            contexts=plan.contexts[used], length=plan.length[used], context=local
        )
    )
