"""The group normaliser: centre and scale by segment statistics."""

from collections.abc import Callable

import jax.numpy as jnp

from gpo import segment
from gpo.base import Transform, part, stateless
from gpo.batch import Batch, Keys


def keyed(value, batch: Batch, by):
    """Segment key and voters of a value: (B,) is rollout level, (B, T) token level."""
    level = "rollout" if value.ndim == 1 else "token"
    where = batch.valid(level, value) & ~jnp.isnan(value)
    return batch.key(by, level, value), where


@part
def center(by: Keys = "group", baseline: Callable = segment.mean) -> Transform:
    """Subtracts a baseline of the group: ``A_i = r_i - baseline(r)_i``.

    Args:
      by: columns that define a group; ``()`` is the whole batch.
      baseline: a segment statistic ``(x, key, where) -> x``: `segment.mean` (GRPO),
        `segment.leave_one_out` (RLOO), `segment.lower_median` (MC-GRPO), ...

    Returns:
      Transform (B,) -> (B,), also (B, T). A group of equal values, a group of one and
      a row that does not vote give exactly 0.

    Example:
      >>> import gpo
      >>> gpo.apply(center(), [1.0, 0.0, 0.0, 2.0], group=[0, 0, 0, 0]).tolist()
      [0.25, -0.75, -0.75, 1.25]

    Reference: Understanding R1-Zero-Like Training: A Critical Perspective, Liu et al.,
      2025, arXiv 2503.20783 (centring without scaling).

    Deviations: none.

    Status: code
    """

    def centred(value, batch):
        key, where = keyed(value, batch, by)
        flat = segment.constant(value, key, where) | ~where
        return jnp.where(
            flat, 0, jnp.where(where, value, 0) - baseline(value, key, where)
        )

    return stateless(centred)


@part
def scale(
    by: Keys = "group", *, ddof: int = 1, eps: float, spread: Callable | None = None
) -> Transform:
    """Divides by a spread of the group: ``y_i = x_i / (std(x)_i + eps)``.

    Args:
      by: columns that define a group; ``()`` is the whole batch.
      ddof: of the standard deviation; ignored when ``spread`` is given.
      eps: added to the spread, outside the root.
      spread: a segment statistic ``(x, key, where) -> x`` instead of the standard
        deviation, for example `mad`.

    Returns:
      Transform (B,) -> (B,), also (B, T). Where spread + eps is 0 the result is 0.

    Reference: DeepSeekMath, Shao et al., 2024, arXiv 2402.03300.

    Deviations: the paper states neither ddof nor eps.

    Status: code
    """
    return stateless(
        lambda value, batch: _divide(value, value, batch, by, ddof, eps, spread)
    )


def _divide(value, of, batch, by, ddof, eps, spread=None):
    key, where = keyed(of, batch, by)
    if spread is None:
        width = segment.std(of, key, where, ddof=ddof) + eps
    else:
        width = spread(of, key, where) + eps
    ok = (width > 0) & where
    return jnp.where(ok, jnp.where(where, value, 0) / jnp.where(ok, width, 1), 0)


def mad(x, key, where=None):
    """Median absolute deviation of the segment, with the lower median in both places.

    ``MAD_i = lower_median_j |x_j - lower_median(x)|``; a spread for `scale`.

    Reference: MC-GRPO [3].
    """
    return segment.lower_median(
        jnp.abs(x - segment.lower_median(x, key, where)), key, where
    )


@part
def zscore(
    by: Keys = "group",
    *,
    ddof: int = 1,
    eps: float = 1e-4,
    scale_by: Keys | None = None,
) -> Transform:
    """Standardises: ``A_i = (r_i - mean(r)_i) / (std(r)_i + eps)``.

    Args:
      by: columns that define the group of the mean.
      ddof: of the standard deviation; default 1 as in released GRPO code.
      eps: added to the standard deviation; default 1e-4 as in TRL.
      scale_by: columns of the group of the standard deviation, taken over the raw
        rewards; None: the same as ``by``. ``()`` is the batch.

    Returns:
      Transform (B,) -> (B,), also (B, T). Equal rewards and groups of one give 0.

    Example:
      >>> import gpo
      >>> a = gpo.apply(zscore(), [1.0, 0.0, 0.0, 2.0], group=[0, 0, 0, 0])
      >>> [round(float(x), 4) for x in a]
      [0.2611, -0.7833, -0.7833, 1.3054]

    Reference: DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open
      Language Models, Shao et al., 2024, arXiv 2402.03300.

    Deviations: the paper states neither ddof nor eps.

    Status: code
    """
    subtract = center(by)

    def standardised(value, batch):
        centred, _ = subtract.update(value, (), batch, None)
        group = by if scale_by is None else scale_by
        return _divide(centred, value, batch, group, ddof, eps)

    return stateless(standardised)


@part
def rescale_valid(by: Keys = "group") -> Transform:
    """Multiplies by the inverse share of groups with a signal.

    ``y_i = x_i · (#groups / #groups whose rewards differ)``, so that groups of equal
    rewards do not shrink the gradient; 1 where no group has a signal.

    Args:
      by: columns that define a group.

    Returns:
      Transform (B,) -> (B,); reads ``reward`` (B,).

    Reference: GPG: A Simple and Strong Reinforcement Learning Baseline for Model
      Reasoning, Chu et al., 2025, arXiv 2504.02546 [285].

    Deviations: verl's factor counts non-zero rewards instead; the released code is
      followed. Groups of one count as groups without a signal.

    Status: code
    """

    def rescaled(value, batch):
        key, where = keyed(batch["reward"], batch, by)
        size = segment.count(key, where, value.dtype)
        vote = jnp.where(where, 1 / jnp.maximum(size, 1), 0)
        signal = ~segment.constant(batch["reward"], key, where)
        useful = jnp.sum(jnp.where(signal, vote, 0))
        ok = useful > 0
        factor = jnp.where(ok, jnp.sum(vote) / jnp.where(ok, useful, 1), 1)
        _, live = keyed(value, batch, by)
        return jnp.where(live, value, 0) * factor

    return stateless(rescaled)
