"""Group statistics: masked segment reductions, spread back over their members.

Every function takes values ``x``, an integer ``key`` of the same shape that says which
segment an element belongs to, and an optional boolean ``where`` that says which
elements vote. Each returns an array shaped like ``x``: the statistic of the element's
own segment. Keys are any integers; only equality matters, except that they must lie in
``[0, x.size)`` (`dense` makes such keys). A reduction over nothing is 0. Elements that
do not vote may hold NaN or inf.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num, Shaped

from gpo import checks


def dense(*columns: Shaped[Array, "*n"]) -> Int[Array, "*n"]:
    """Numbers the distinct rows of several columns 0, 1, ... in sorted order.

    Args:
      *columns: arrays of one shape; two elements share a key when all columns agree.

    Returns:
      int32 keys in ``[0, size)``, shaped like the columns.

    Example:
      >>> dense(jnp.array([7, 3, 7]), jnp.array([0, 0, 0])).tolist()
      [1, 0, 1]

    Reference: library word; `numpy.unique(return_inverse=True)` over rows.
    """
    flat = [c.ravel() for c in columns]
    order = jnp.lexsort(flat[::-1])
    ordered = [c[order] for c in flat]
    new = jnp.stack([c[1:] != c[:-1] for c in ordered]).any(0)
    ids = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(new, dtype=jnp.int32)])
    return jnp.zeros_like(ids).at[order].set(ids).reshape(columns[0].shape)


def _votes(x, key, where):
    checks.same_shape(x=x, key=key)
    where = jnp.ones(x.shape, bool) if where is None else where
    checks.same_shape(x=x, where=where)
    return jnp.where(where, x, jnp.zeros_like(x)), where


def _narrow(dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def _spread(reduce, x, key):
    return reduce(x.ravel(), key.ravel(), x.size)[key]


def total(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None) -> Num[Array, "*n"]:
    """Sum of the segment: ``Σ_{j: key_j = key_i} x_j``. Empty: 0."""
    x, _ = _votes(x, key, where)
    # a 16-bit sum stops growing after a few hundred members
    wide = x.astype(jnp.float32) if _narrow(x.dtype) else x
    return _spread(jax.ops.segment_sum, wide, key).astype(x.dtype)


def count(key: Int[Array, "*n"], where: Bool[Array, "*n"] | None = None, dtype=None):
    """Number of voting members of the segment, as ``dtype`` (default int32)."""
    ones = jnp.ones(key.shape, jnp.int32)
    return total(ones, key, where).astype(dtype or jnp.int32)


def mean(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None) -> Num[Array, "*n"]:
    """Mean of the segment. Empty: 0; equal values give that value up to rounding."""
    size = count(key, where, x.dtype)
    return total(x, key, where) / jnp.maximum(size, 1)


def var(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None, *, ddof: int):
    """Variance of the segment, ``Σ(x - mean)² / max(n - ddof, 1)``; exactly 0 when
    all voting members are equal."""
    x, where = _votes(x, key, where)
    centred = jnp.where(constant(x, key, where), 0, x - mean(x, key, where))
    size = count(key, where, x.dtype)
    return total(centred**2, key, where) / jnp.maximum(size - ddof, 1)


def std(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None, *, ddof: int):
    """Square root of `var`, with gradient 0 (not NaN) where the variance is 0."""
    v = var(x, key, where, ddof=ddof)
    return jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0)


def _extreme(reduce, fill, x, key, where):
    x, where = _votes(x, key, where)
    found = _spread(reduce, jnp.where(where, x, fill(x.dtype)), key)
    return jnp.where(count(key, where) > 0, found, jnp.zeros_like(x))


def _lowest(dtype):
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    return jnp.asarray(-jnp.inf if inexact else jnp.iinfo(dtype).min, dtype)


def _highest(dtype):
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    return jnp.asarray(jnp.inf if inexact else jnp.iinfo(dtype).max, dtype)


def max(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None) -> Num[Array, "*n"]:
    """Largest value of the segment. Empty: 0."""
    return _extreme(jax.ops.segment_max, _lowest, x, key, where)


def min(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None) -> Num[Array, "*n"]:
    """Smallest value of the segment. Empty: 0."""
    return _extreme(jax.ops.segment_min, _highest, x, key, where)


def constant(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None):
    """True where all voting members of the segment are equal (exact test max = min);
    also for segments of one or none."""
    return max(x, key, where) == min(x, key, where)


def _sorted(x, key, where):
    """Order by (key, votes first, value), and each segment's first sorted position."""
    order = jnp.lexsort((x.ravel(), ~where.ravel(), key.ravel()))
    at = jnp.arange(x.size, dtype=jnp.int32)
    starts = jax.ops.segment_min(at, key.ravel()[order], x.size)
    return order, starts[key]


def nth(x: Num[Array, "*n"], key: Int[Array, "*n"], k, where=None):
    """The k-th smallest voting member of the segment (k = 0 is the minimum).

    ``k`` is an integer or an integer array shaped like ``x``; it is clipped to the
    segment. Empty: 0.
    """
    x, where = _votes(x, key, where)
    order, start = _sorted(x, key, where)
    last = jnp.maximum(count(key, where) - 1, 0)
    return x.ravel()[order][start + jnp.clip(k, 0, last)]


def quantile(x: Num[Array, "*n"], key: Int[Array, "*n"], q, where=None):
    """q-quantile of the segment with linear interpolation (numpy's default)."""
    wide = jnp.float32 if _narrow(x.dtype) else x.dtype
    position = q * jnp.maximum(count(key, where) - 1, 0).astype(wide)
    low = jnp.floor(position).astype(jnp.int32)
    share = (position - low.astype(wide)).astype(x.dtype)
    below, above = nth(x, key, low, where), nth(x, key, low + 1, where)
    return below + share * (above - below)


def median(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None):
    """Median of the segment; the mean of the two middle values for even sizes."""
    return quantile(x, key, 0.5, where)


def lower_median(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None):
    """Lower median, ``sorted[(n - 1) // 2]``: always one of the values."""
    return nth(x, key, (count(key, where) - 1) // 2, where)


def rank(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None) -> Int[Array, "*n"]:
    """0-based ascending rank within the segment; ties by position, non-voters last."""
    x, where = _votes(x, key, where)
    order, start = _sorted(x, key, where)
    at = jnp.arange(x.size, dtype=jnp.int32)
    return jnp.zeros_like(at).at[order].set(at).reshape(x.shape) - start


def leave_one_out(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None):
    """Mean of the segment's other voting members; 0 when there is no other."""
    x, where = _votes(x, key, where)
    others = count(key, where, x.dtype) - where.astype(x.dtype)
    mean_of_others = (total(x, key, where) - x) / jnp.maximum(others, 1)
    return jnp.where(others > 0, mean_of_others, 0)


def softmax(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None):
    """Softmax within the segment; non-voters get 0."""
    x, where = _votes(x, key, where)
    top = jax.lax.stop_gradient(max(x, key, where))
    e = jnp.where(where, jnp.exp(jnp.where(where, x - top, 0)), 0)
    return e / jnp.maximum(total(e, key, where), jnp.finfo(e.dtype).tiny)


def cumulative(x: Num[Array, "*n"], key: Int[Array, "*n"], where=None):
    """Running sum within the segment, in the order of the array, inclusive."""
    x, _ = _votes(x, key, where)
    order = jnp.argsort(key.ravel(), stable=True)
    ordered = key.ravel()[order]
    starts = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])

    # restarted, not subtracted: a large segment must not round away the next one
    def add(left, right):
        (a, _), (b, restart) = left, right
        return jnp.where(restart, b, a + b), left[1] | restart

    running, _ = jax.lax.associative_scan(add, (x.ravel()[order], starts))
    return jnp.zeros_like(running).at[order].set(running).reshape(x.shape)
