"""Published methods: a recipe is a composition, a variant a ``_replace``."""

from gpo.recipes.base import (
    bnpo,
    cispo,
    dapo,
    dr_grpo,
    gpg,
    grpo,
    gspo,
    reinforce_pp,
    rloo,
)
from gpo.recipes.budget import ar3po, knapsack_grpo, mopps, nudge
from gpo.recipes.credit import ebpo, forking_tokens, gdpo, mc_grpo, vcpo_ess

__all__ = [
    "ar3po", "bnpo", "cispo", "dapo", "dr_grpo", "ebpo", "forking_tokens", "gdpo",
    "gpg", "grpo", "gspo", "knapsack_grpo", "mc_grpo", "mopps", "nudge",
    "reinforce_pp", "rloo", "vcpo_ess",
]  # fmt: skip
