"""(B,) or (B, K) rewards to (B,) rewards."""

from gpo.reward.shape import kl_penalty, overlong, total

__all__ = ["kl_penalty", "overlong", "total"]
