"""(N,) prompt logits to (N,) prompt logits; P prompts are drawn by Gumbel top-k."""

from gpo.curriculum.posterior import best_first, beta_update
from gpo.curriculum.predictive import mopps

__all__ = ["best_first", "beta_update", "mopps"]
