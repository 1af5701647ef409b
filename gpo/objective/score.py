"""Objectives without a ratio."""

from gpo.base import Transform, part, stateless


@part
def reinforce() -> Transform:
    """Score function: ``A · logp``.

    Returns:
      Transform (B, T) logp -> (B, T) gains; reads ``advantage``.

    Reference: Simple Statistical Gradient-Following Algorithms for Connectionist
      Reinforcement Learning, Williams, 1992.

    Status: known
    """

    def gains(value, batch):
        logp = batch.replace(logp=value).token("logp", value)
        return batch.token("advantage", value) * logp

    return stateless(gains)


@part
def likelihood() -> Transform:
    """Maximum likelihood: the gain is ``logp`` itself (supervised fine-tuning).

    Returns:
      Transform (B, T) logp -> (B, T) gains.

    Reference: library word.
    """
    return stateless(
        lambda value, batch: batch.replace(logp=value).token("logp", value)
    )


@part
def entropy() -> Transform:
    """Entropy bonus: the gain is the policy's ``entropy``, with gradient.

    Returns:
      Transform (B, T) -> (B, T) gains in nats; reads ``entropy``.

    Reference: Asynchronous Methods for Deep Reinforcement Learning, Mnih et al., 2016,
      arXiv 1602.01783.

    Status: known
    """
    return stateless(lambda value, batch: batch.token("entropy", value))
