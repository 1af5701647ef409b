"""(P,) shares to (P,) shares of the step's B rollouts."""

from gpo.allocation.knapsack import knapsack
from gpo.allocation.rounding import largest_remainder

__all__ = ["knapsack", "largest_remainder"]
