"""Auxiliary terms: demonstrations, distillation to another prompt, entropy."""

import jax
import jax.numpy as jnp

from gpo import objective, weight
from gpo.batch import Batch
from gpo.combine import chain
from gpo.recipe import Auxiliary


def entropy_bonus(coef: float) -> Auxiliary:
    """Adds ``coef · mean_t H``, the policy's mean token entropy, to what is maximised.

    Args:
      coef: in loss per nat.

    Returns:
      An auxiliary term over the rollouts' own tokens; reads ``entropy``.

    Reference: Asynchronous Methods for Deep Reinforcement Learning, Mnih et al., 2016,
      arXiv 1602.01783.

    Status: known
    """
    return Auxiliary(
        chain(weight.token_mean(), weight.times(coef)), objective.entropy()
    )


def demonstrations(batch: Batch) -> Batch:
    """One demonstration a context, from the columns ``demo`` (B, T') of token ids and
    ``demo_length`` (B,), as the task offers them."""
    plan, rows = batch.plan, jnp.arange(batch.rows, dtype=jnp.int32)
    contexts = plan.contexts.shape[0]
    first = jax.ops.segment_min(rows, plan.context, contexts)
    used = first < batch.rows  # a context that no row reads has no demonstration
    first = jnp.minimum(first, batch.rows - 1)
    tokens, length = batch["demo"][first], batch["demo_length"][first]
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    columns = {n: getattr(plan, n)[first] for n in ("prompt", "group", "row")}
    own = jnp.arange(contexts, dtype=jnp.int32)
    return Batch(
        plan=plan.replace(context=own, width=1, **columns),
        tokens=tokens,
        length=length,
        mask=at[None] < length[:, None],
        live=used & (length > 0),
        whole=batch.whole,
    )


def demonstration(coef: float) -> Auxiliary:
    """Supervised term: ``coef · mean_t logp`` of the task's demonstrations.

    Args:
      coef: weight of the mean log-likelihood.

    Returns:
      An auxiliary term over one demonstration a prompt; the task must offer columns
      ``demo`` (N, T') and ``demo_length`` (N,).

    Reference: library word; supervised fine-tuning beside the policy gradient, as in
      SRFT, LUFFY and others.

    Status: known
    """
    scaled = chain(weight.token_mean(), weight.times(coef))
    return Auxiliary(scaled, objective.likelihood(), demonstrations)


def plain_prompt(batch: Batch) -> Batch:
    """The same rollouts, under the unhinted prompt of their group."""
    plan = batch.plan
    return batch.replace(plan=plan.replace(context=plan.group, width=None))


def distil_to_prompt(coef: float = 0.1) -> Auxiliary:
    """Carries what was learnt under hints over to the plain prompt.

    ``coef · mean_b A_b · mean_t logp(y_t | plain prompt)``, both signs of A.

    Args:
      coef: default .1 as released.

    Returns:
      An auxiliary term for plans made by `gpo.context.hints`.

    Reference: NudgeRL [90], tally0818/NudgeRL.

    Status: code
    """
    scaled = chain(weight.sequence_mean(), weight.times(coef))
    return Auxiliary(scaled, objective.reinforce(), plain_prompt)
