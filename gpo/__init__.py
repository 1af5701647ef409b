"""gpo: optax for group policy optimisation.

`gpo.apply(transform, value, **columns)` and `gpo.loss(recipe, logp, **columns)` work on
plain arrays; `gpo.recipes` holds published methods as compositions of parts from
`gpo.advantage`, `gpo.objective`, `gpo.weight`, ...; `gpo.train` runs them on a model.
"""

from gpo import (
    advantage,
    allocation,
    auxiliary,
    behaviour,
    buffer,
    context,
    curriculum,
    gradient,
    metrics,
    objective,
    recipes,
    reward,
    sampling,
    segment,
    select,
    weight,
)
from gpo.base import Transform, apply, identity, part, stateless, stochastic
from gpo.batch import Batch, Plan
from gpo.combine import (
    chain,
    named_chain,
    per_column,
    scheduled,
    weighted_sum,
    where,
)
from gpo.recipe import Auxiliary, Recipe, credit, describe, loss

__version__ = "0.1.0"
__all__ = [
    "Auxiliary", "Batch", "Plan", "Recipe", "Transform", "advantage", "allocation",
    "apply", "auxiliary", "behaviour", "buffer", "chain", "context", "credit",
    "curriculum", "describe", "gradient", "identity", "loss", "metrics",
    "named_chain", "objective", "part", "per_column", "recipes", "reward", "sampling",
    "scheduled", "segment", "select", "stateless", "stochastic", "weight",
    "weighted_sum", "where",
]  # fmt: skip
