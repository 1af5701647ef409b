"""The learner: credit, minibatches, microbatches, update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpo.batch import Batch
from gpo.models.decoder import Model
from gpo.recipe import Recipe, credit, gain, surrogate, weigh
from gpo.rollout import decode
from gpo.train import sharding
from gpo.train.split import split
from gpo.train.state import TrainState, merge, partition


class Learner(NamedTuple):
    """What `learn` needs to know besides the state; see `gpo.train.make_step`."""

    model: Model
    recipe: Recipe
    base_optimiser: optax.GradientTransformation
    logits: Any = None
    epochs: int = 1
    minibatches: int = 1
    microbatches: int = 1
    trainable: Callable[[str], bool] | None = None
    chunk: int = 512
    remat: Any = None
    mesh: Any = None

    def optimiser(self) -> optax.GradientTransformationExtraArgs:
        """The optimiser inside the recipe's ``gradient`` slot."""
        around = self.recipe.gradient
        made = self.base_optimiser if around is None else around(self.base_optimiser)
        return optax.with_extra_args_support(made)

    def token_logp(self, params, batch: Batch, states: Recipe):
        """(logp, entropy) of a batch under the distribution that is sampled from."""
        return decode.token_logp(
            self.model, params, batch,
            logits=self.logits, state=states.logits, chunk=self.chunk, remat=self.remat,
        )  # fmt: skip


def learn(
    learner: Learner, state: TrainState, batch: Batch, key
) -> tuple[TrainState, Batch]:
    """One step's learning from scored rollouts.

    Args:
      learner: model, recipe and how to split.
      state: before the step.
      batch: scored rollouts, from ``generate`` or of one's own: plan, tokens, length,
        mask, live, old_logp and reward.
      key: of this step's learning.

    Returns:
      The state after it, and the finished batch: with advantage, weight, logp, entropy,
      and scalars ``loss`` and ``grad_norm``.

    Reference: library word.
    """
    recipe, states = learner.recipe, state.recipe
    k_credit, k_update, k_curriculum, k_observe = jax.random.split(key, 4)
    if state.reference is not None:
        ref_logp, _ = learner.token_logp(state.reference, batch, states)
        batch = batch.replace(ref_logp=jax.lax.stop_gradient(ref_logp))
    batch, states = credit(recipe, states, batch, k_credit)
    batch = sharding.rows(batch, learner.mesh)
    if batch.get("recompute") is not None:
        logp, _ = learner.token_logp(state.params, batch, states)
        rows = batch["recompute"][:, None]
        batch = batch.replace(old_logp=jnp.where(rows, logp, batch["old_logp"]))
    state = state._replace(recipe=states)
    state, batch = _epochs(learner, state, batch, k_update)
    return _observe(learner, state, batch, k_curriculum, k_observe), batch


def _observe(learner: Learner, state: TrainState, batch: Batch, key, other):
    """What runs after the update: the curriculum, and what learns from the outcome."""
    recipe, states = learner.recipe, state.recipe
    k_share, k_context = jax.random.split(other)
    if jax.tree.leaves(states.context):
        _, s = recipe.context.update(batch.plan, states.context, batch, k_context)
        states = states._replace(context=s)
    with jax.named_scope("curriculum"):
        logits, s_curriculum = recipe.curriculum.update(
            state.prompt_logits, states.curriculum, batch, key
        )
    _, s_share = recipe.allocation.update(logits, states.allocation, batch, k_share)
    states = states._replace(curriculum=s_curriculum, allocation=s_share)
    return state._replace(step=state.step + 1, prompt_logits=logits, recipe=states)


def _epochs(learner: Learner, state: TrainState, batch: Batch, key):
    """All updates of a step; the batch comes back with what each row last saw."""
    parts = learner.minibatches
    dealt = split(batch, parts, "minibatches")
    if learner.epochs * parts == 1:
        return update(learner, state, batch, key)
    k_order, k_parts = jax.random.split(key)
    unit = jnp.arange(dealt.units, dtype=jnp.int32)
    orders = [
        jax.random.permutation(jax.random.fold_in(k_order, e), unit).reshape(parts, -1)
        for e in range(learner.epochs)
    ]
    names = ("logp", "entropy", "weight")
    blank = {n: jnp.zeros_like(batch["old_logp"]) for n in names}

    def body(carry, xs):
        state, columns = carry
        chosen, index = xs
        state, part = update(
            learner, state, dealt.part(chosen), jax.random.fold_in(k_parts, index)
        )
        rows = dealt.rows(chosen)
        columns = {n: columns[n].at[rows].set(part[n]) for n in names}
        return (state, columns), (part["loss"], part["grad_norm"])

    table = jnp.concatenate(orders)
    index = jnp.arange(table.shape[0], dtype=jnp.int32)
    (state, columns), (loss, norm) = jax.lax.scan(body, (state, blank), (table, index))
    return state, batch.replace(**columns, loss=loss.mean(), grad_norm=norm.mean())


def update(
    learner: Learner, state: TrainState, batch: Batch, key
) -> tuple[TrainState, Batch]:
    """One optimiser step on a minibatch; skipped when it is not finite.

    Weights, and with them all denominators, are computed over the minibatch before it
    is split, so microbatches only add partial sums.
    """
    recipe, states = learner.recipe, state.recipe
    k_weight, k_objective = jax.random.split(key)
    batch, states = weigh(recipe, states, batch, k_weight)
    terms, states = _auxiliary(recipe, states, batch, k_weight)
    trained, frozen = partition(state.params, learner.trainable)

    def loss(trained, parts):
        params = merge(trained, frozen)
        own, *others = parts
        own = _scored(learner, params, own, state.recipe)
        value = surrogate(recipe.objective, states.objective, own, k_objective)
        extras = iter(others)
        for term, (_, s) in zip(recipe.auxiliary, states.auxiliary, strict=True):
            tokens = next(extras)
            if term.source is None:
                tokens = tokens.replace(logp=own.logp, entropy=own.entropy)
            else:
                tokens = _scored(learner, params, tokens, state.recipe)
            value = value + surrogate(term.objective, s, tokens, k_objective)
        return value, (own.logp, own.entropy)

    value, (logp, entropy), grads = _accumulate(learner, loss, trained, (batch, *terms))
    batch = batch.replace(logp=logp, entropy=entropy)
    norm = optax.tree.norm(grads)
    ok = jnp.isfinite(value) & jnp.isfinite(norm)
    states = _advance(recipe, states, batch, k_objective)
    # optax mixes integer counts with floats, which strict promotion forbids
    with jax.numpy_dtype_promotion("standard"), jax.named_scope("optimiser"):
        updates, opt = learner.optimiser().update(
            grads, state.opt, trained, batch=batch
        )
        moved = optax.apply_updates(trained, updates)

    def keep(new, old):
        return jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)

    skipped = jnp.where(ok, 0, state.skipped + 1).astype(state.skipped.dtype)
    return state._replace(
        params=merge(keep(moved, trained), frozen),
        opt=keep(opt, state.opt),
        recipe=keep(states, state.recipe),
        skipped=skipped,
    ), batch.replace(loss=value, grad_norm=norm)


def _scored(learner: Learner, params, batch: Batch, states: Recipe) -> Batch:
    logp, entropy = learner.token_logp(params, batch, states)
    return batch.replace(logp=logp, entropy=entropy)


def _auxiliary(recipe: Recipe, states: Recipe, batch: Batch, key):
    """The batches of the auxiliary terms, weighed over the whole minibatch."""
    terms, kept = [], []
    for term, (w_state, o_state) in zip(
        recipe.auxiliary, states.auxiliary, strict=True
    ):
        tokens = batch if term.source is None else term.source(batch)
        mask = tokens.valid("token", tokens.tokens).astype(jnp.float32)
        weight, w_state = term.weight.update(mask, w_state, tokens, key)
        terms.append(tokens.replace(weight=jax.lax.stop_gradient(weight)))
        kept.append((w_state, o_state))
    return terms, states._replace(auxiliary=tuple(kept))


def _accumulate(learner: Learner, loss, trained, batches):
    """Value, (logp, entropy) and gradient, summed over the microbatches."""
    parts = learner.microbatches
    run = jax.value_and_grad(loss, has_aux=True)
    if parts == 1:
        (value, columns), grads = run(trained, batches)
        return value, columns, grads
    cuts = [split(b, parts, "microbatches", in_order=True) for b in batches]
    tables = [jnp.arange(c.units, dtype=jnp.int32).reshape(parts, -1) for c in cuts]

    def body(total, chosen):
        own = tuple(c.part(i) for c, i in zip(cuts, chosen, strict=True))
        (value, columns), grads = run(trained, own)
        new = jax.tree.map(
            lambda s, x: s + x.astype(jnp.float32), total, (value, grads)
        )
        return new, columns

    # sums in float32, whatever the parameters are
    wide = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), trained)
    zero = (jnp.zeros((), jnp.float32), wide)
    (value, grads), columns = jax.lax.scan(body, zero, tuple(tables))
    grads = jax.tree.map(lambda g, x: g.astype(x.dtype), grads, trained)
    columns = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns)
    return value, columns, grads


def _advance(recipe: Recipe, states: Recipe, batch: Batch, key) -> Recipe:
    """The objective's next state, from the whole minibatch and outside the gradient."""
    if not jax.tree.leaves(states.objective):
        return states
    _, state = gain(recipe.objective, states.objective, batch, key)
    return states._replace(objective=jax.lax.stop_gradient(state))
