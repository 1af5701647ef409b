"""`make_step`: choose prompts, sample, score, credit and learn as one program."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gpo import checks, metrics
from gpo.allocation.rounding import largest_remainder
from gpo.batch import Batch, Plan
from gpo.models.decoder import Model
from gpo.recipe import Recipe, alive, credit, describe, init_states, is_identity
from gpo.rollout import decode
from gpo.tasks.base import Task
from gpo.train import learn as learning
from gpo.train import sharding
from gpo.train.state import TrainState, partition


class Compiled:
    """A step as one program: call it on a state, which it takes over (donates).

    The data set's tables are arguments of the program, not constants in it.
    """

    def __init__(self, step: Callable, tables):
        self._traced, self._tables = 0, tables

        def counted(state, tables):
            self._traced += 1  # runs when it is traced only
            return step(state, tables)

        self._jitted = jax.jit(counted, donate_argnums=0)

    def __call__(self, state: TrainState):
        return self._jitted(state, self._tables)

    def lower(self, state):
        """The lowered program, for its cost and memory; takes ShapeDtypeStructs too."""
        return self._jitted.lower(state, self._tables)

    def compilations(self) -> int:
        """How many programs were made so far: one, unless shapes changed.

        Counted as the step is traced: jit's own cache is bounded and forgets.
        """
        return self._traced


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step and its two halves, as functions of a `TrainState`.

    ========  =====================================================================
    init      ``(params, key, reference=None) -> TrainState``
    generate  ``(state, key) -> (Batch, state)``: choose, sample, score
    learn     ``(state, batch, key) -> (state, batch)``: credit, update
    step      ``state -> (state, batch, metrics)``: both, `Compiled` once
    ========  =====================================================================

    ``generate`` and ``learn`` are pure and unjitted, for users' own steps.
    """

    init: Callable
    generate: Callable
    learn: Callable
    step: Compiled


def make_step(
    model: Model,
    recipe: Recipe,
    task: Task,
    optimiser: optax.GradientTransformation,
    *,
    prompts: int,
    rollouts: int,
    length: int,
    epochs: int = 1,
    minibatches: int = 1,
    microbatches: int = 1,
    trainable: Callable[[str], bool] | None = None,
    support: int = 64,
    chunk: int = 512,
    remat: Any = None,
    mesh: jax.sharding.Mesh | None = None,
    sampler: decode.Sampler | None = None,
) -> Step:
    """Builds the training step of a recipe on a model and a task.

    Args:
      model: the policy.
      recipe: what to do with rollouts.
      task: prompts and how they are scored.
      optimiser: optax optimiser of the trainable parameters.
      prompts: P, prompts a step.
      rollouts: B, rollouts a step; a multiple of P unless the recipe allocates them.
      length: T, most new tokens of a rollout.
      epochs: passes over the rollouts of a step.
      minibatches: updates a pass.
      microbatches: parts of a minibatch whose gradients are added up; the result does
        not depend on it.
      trainable: which parameters are trained, by path; None: all.
      support: W, most tokens of a cut support (top-k, top-p, min-p) that are kept for
        the learner. A wider support is cut to its W most likely tokens in the sampler,
        so that the ratio stays exact.
      chunk: tokens whose logits exist at once in the learner.
      remat: rematerialisation of the layers: None, True or a `jax.checkpoint` policy.
      mesh: devices; None: wherever the arrays are.
      sampler: another way to make rollouts; None: `gpo.rollout.decode.plain`.

    Returns:
      `Step`.

    Raises:
      ValueError: groups do not fit the batch, the data set has too few prompts, or the
        recipe gives groups of one no signal.

    Reference: library word.
    """
    population = len(task.prompts)
    checks.require(
        1 <= prompts <= population,
        f"prompts={prompts} a step, but the data set has {population}",
    )
    allocated = not is_identity(recipe.allocation)
    checks.require(
        rollouts % prompts == 0 or (allocated and rollouts >= prompts),
        f"rollouts={rollouts} do not make equal groups for prompts={prompts}: choose a "
        "multiple, or a recipe with an allocation",
    )
    cut = decode.cuts_support(recipe.logits, model.config.vocab)
    tables: dict[str, Any] = {
        "prompts": jnp.asarray(task.prompts),
        "length": jnp.asarray(task.length),
    }
    tables["columns"] = {k: jnp.asarray(v) for k, v in task.columns.items()}
    slot = None if is_identity(recipe.logits) else recipe.logits
    sampler = sampler or decode.plain(
        model, length=length, stop=task.stop, logits=slot,
        support=support if cut else None,
    )  # fmt: skip

    def plan_of(state, tables, key):
        """Chooses prompts and lays out their rollouts."""
        k_draw, k_share, k_context = jax.random.split(key, 3)
        noise = jax.random.gumbel(k_draw, (population,))
        chosen = jax.lax.top_k(state.prompt_logits + noise, prompts)[1]
        row = jnp.arange(rollouts, dtype=jnp.int32)
        states = state.recipe
        count = jnp.full((prompts,), rollouts // prompts, jnp.int32)
        if allocated:
            known = Batch.of(candidates=chosen, row=row)
            shares = jnp.full((prompts,), 1 / prompts, jnp.float32)
            shares, s = recipe.allocation.update(
                shares, states.allocation, known, k_share
            )
            states = states._replace(allocation=s)
            count = largest_remainder(shares, rollouts)
        own = jnp.arange(prompts, dtype=jnp.int32)
        group = jnp.repeat(own, count, total_repeat_length=rollouts)
        plan = Plan(
            contexts=tables["prompts"][chosen],
            length=tables["length"][chosen],
            context=group,
            prompt=chosen[group],
            group=group,
            row=row,
            width=None if allocated else rollouts // prompts,
            population=population,
        )
        plan, s = recipe.context.update(
            plan, states.context, Batch.of(plan=plan), k_context
        )
        return plan, state._replace(recipe=states._replace(context=s))

    def generate(state: TrainState, key, tables=tables) -> tuple[Batch, TrainState]:
        k_plan, k_behaviour, k_rows = jax.random.split(key, 3)
        plan, state = plan_of(state, tables, k_plan)
        plan = sharding.rows(plan, mesh)
        states = state.recipe
        with jax.named_scope("behaviour"):
            params, s_behaviour = recipe.behaviour.update(
                state.params, states.behaviour, Batch.of(plan=plan), k_behaviour
            )
        with jax.named_scope("sample"):
            batch, s_logits, s_sampler = sampler.sample(
                params, plan, k_rows, states.logits, state.sampler
            )
        columns = {k: v[plan.prompt] for k, v in tables["columns"].items()}
        batch = batch.replace(**columns, version=jnp.full_like(plan.row, state.step))
        with jax.named_scope("score"):
            score = task.score(batch)
        batch = sharding.rows(batch.replace(reward=score, score=score), mesh)
        states = states._replace(behaviour=s_behaviour, logits=s_logits)
        return batch, state._replace(recipe=states, sampler=s_sampler)

    learner = learning.Learner(
        model, recipe, optimiser, slot, epochs, minibatches, microbatches,
        trainable, chunk, remat, mesh,
    )  # fmt: skip
    learn = functools.partial(learning.learn, learner)

    def init(params, key, reference=None) -> TrainState:
        """A fresh state; ``reference``: parameters for ``ref_logp`` (KL to the start).

        The state owns its arrays: ``params`` can be used further.
        """
        copy = functools.partial(jax.tree.map, lambda x: jnp.array(x, copy=True))
        logits = jax.ShapeDtypeStruct((rollouts, model.config.vocab), jnp.float32)
        statistics = jax.ShapeDtypeStruct((population,), jnp.float32)
        params = copy(params)
        before = {"curriculum": statistics, "allocation": statistics, "logits": logits}
        before |= {"context": statistics, "behaviour": params}
        states = init_states(recipe, **before)
        state = TrainState(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.clone(key),
            params=params,
            opt=learner.optimiser().init(partition(params, trainable)[0]),
            prompt_logits=jnp.zeros((population,), jnp.float32),
            recipe=states,
            sampler=sampler.init(),
            reference=None if reference is None else copy(reference),
            skipped=jnp.zeros((), jnp.int32),
        )
        batch = jax.eval_shape(lambda s: generate(s, s.key)[0], state)
        after = _later_states(recipe, learner, batch)
        if rollouts == prompts:
            _check_single(recipe, after, batch)
        kept = {slot: getattr(states, slot) for slot in before}
        # a part's state may hold one array twice, which cannot be donated
        state = state._replace(recipe=copy(after._replace(**kept)))
        return state if mesh is None else sharding.place(state, mesh)

    def both(state: TrainState, tables):
        key = jax.random.fold_in(state.key, state.step)
        k_generate, k_learn = jax.random.split(key)
        sampled, state = generate(state, k_generate, tables)
        state, batch = learn(state, sampled, k_learn)
        return sharding.constrain(state, mesh), batch, summary(state, sampled, batch)

    return Step(init, generate, learn, Compiled(both, tables))


def summary(state: TrainState, sampled: Batch, batch: Batch) -> dict:
    """`gpo.metrics.summary` of a step: rewards and lengths of all sampled rows, the rest
    of the rows that were learnt from, and what the update was."""
    scored = alive(sampled.replace(reward=metrics.total(sampled["score"])))
    return (
        metrics.summary(batch)
        | metrics.summary(scored)
        | {
            "tokens": jnp.sum(sampled["length"]),
            "loss": batch["loss"],
            "grad_norm": batch["grad_norm"],
            "skipped": state.skipped,
        }
    )


def _later_states(recipe: Recipe, learner, batch) -> Recipe:
    """States of the slots that run on scored rollouts, from the batch's shapes."""
    reward = jax.ShapeDtypeStruct(batch.reward.shape[:1], jnp.float32)
    scored = batch.replace(reward=reward)
    first = init_states(
        recipe, reward=batch.reward, buffer=scored, advantage=reward, select=scored
    )
    kept = jax.eval_shape(
        lambda b: credit(recipe, first, b, jax.random.key(0))[0], batch
    )
    rows = kept.rows // learner.minibatches
    tokens = jax.ShapeDtypeStruct((rows, batch.tokens.shape[1]), jnp.float32)
    later = init_states(recipe, weight=tokens, objective=tokens)
    slots = ("reward", "buffer", "advantage", "select")
    return later._replace(**{slot: getattr(first, slot) for slot in slots})


def _check_single(recipe: Recipe, states: Recipe, batch) -> None:
    """Groups of one: raises when every advantage is 0 whatever the rewards are."""
    rows = jnp.arange(batch.rows, dtype=jnp.int32)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
    reward = jax.random.normal(jax.random.key(0), batch.reward.shape)
    blank = blank.replace(
        plan=blank.plan.replace(group=rows, context=rows, prompt=rows, row=rows),
        mask=jnp.ones(batch.mask.shape, bool),
        live=jnp.ones(batch.live.shape, bool),
        reward=reward,
    )
    found, _ = credit(recipe, states, blank, jax.random.key(1))
    checks.require(
        batch.rows == 1 or bool(jnp.any(found.advantage != 0)),
        "rollouts = prompts makes groups of one, for which the group baseline of this "
        f"recipe ({describe(recipe.advantage)}) gives every rollout advantage 0: "
        "sample at least 2 rollouts a prompt, or use a batch baseline such as "
        "gpo.recipes.reinforce_pp",
    )
