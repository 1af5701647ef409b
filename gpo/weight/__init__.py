"""(B, T) masks to (B, T) weights: token selection, and last the aggregation."""

from gpo.weight.aggregate import (
    sequence_mean,
    sequence_sum,
    times,
    token_mean,
    token_sum,
)
from gpo.weight.tokens import forking

__all__ = [
    "forking", "sequence_mean", "sequence_sum", "times", "token_mean", "token_sum",
]  # fmt: skip
