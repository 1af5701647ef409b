"""(B, T) log-probs to (B, T) gains, inside the gradient.

``chain(ratio.token(), trust.clip(.2, .28), regulariser.kl(.04))``: a ratio, what a
trust region makes of it, and what is added.
"""

from gpo.objective import ratio, regulariser, trust
from gpo.objective.score import entropy, likelihood, reinforce

__all__ = ["entropy", "likelihood", "ratio", "regulariser", "reinforce", "trust"]
