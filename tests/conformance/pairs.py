"""Which recipe of ours is which loss of polgrad's, and how it is called."""

import jax.numpy as jnp

import gpo
from gpo import advantage, recipes, segment

# polgrad's registry: a cap of 1 + .2 for CISPO, 16 tokens for Dr. GRPO's denominator
RECIPES = {
    "grpo": recipes.grpo(),
    "grpo_kl": recipes.grpo(kl=0.04),
    "dr_grpo": recipes.dr_grpo(budget=16),
    "dapo": recipes.dapo(),
    "gspo": recipes.gspo(),
    "gspo_wide": recipes.gspo(0.2, 0.2),
    "cispo": recipes.cispo(cap=1.2),
    "rloo": recipes.rloo(),
    "reinforce_pp": recipes.reinforce_pp(),
}
ADVANTAGES = {
    "grpo": recipes.grpo().advantage,
    "dr_grpo": recipes.dr_grpo().advantage,
    "population": advantage.zscore(ddof=0, eps=1e-6),
    "rloo": recipes.rloo().advantage,
    "reinforce_pp": recipes.reinforce_pp().advantage,
    "reinforce_pp_baseline": gpo.chain(
        advantage.center(baseline=segment.mean), advantage.scale((), eps=1e-8)
    ),
}


def loss(recipe, logp, batch):
    """Our loss on a batch with polgrad's names."""
    return gpo.loss(
        recipe,
        logp,
        old_logp=jnp.asarray(batch["old_logprobs"]),
        advantage=jnp.asarray(batch["advantages"]),
        mask=jnp.asarray(batch["response_mask"]),
        ref_logp=jnp.asarray(batch.get("ref_logprobs", batch["old_logprobs"])),
    )[0]
