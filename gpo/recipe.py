"""A `Recipe` has one transform a slot; `credit`, `surrogate` and `loss` run them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpo import checks, metrics
from gpo.base import Label, Transform, identity
from gpo.batch import Batch, Plan


class Auxiliary(NamedTuple):
    """A further loss term over the same or other tokens.

    =========  ====================================================================
    weight     (B', T') mask -> (B', T'), with its coefficient and its aggregation
    objective  (B', T') logp -> (B', T') gain
    source     None: the rollouts themselves; else ``Batch -> Batch``, the tokens and
               contexts to run the model over (demonstrations, other prompts)
    =========  ====================================================================
    """

    weight: Transform
    objective: Transform
    source: Callable[[Batch], Batch] | None = None


class Recipe(NamedTuple):
    """One transform per slot; a method is a recipe, a variant is a ``_replace``.

    ==========  ===================================  ===============================
    slot        value                                runs
    ==========  ===================================  ===============================
    curriculum  (N,) prompt logits -> (N,)           after the update
    allocation  (P,) shares -> (P,)                  before sampling
    context     Plan -> Plan                         before sampling
    behaviour   params -> params                     before sampling
    logits      (B, V) -> (B, V)                     every decoded token
    reward      (B,) or (B, K) -> (B,)               after scoring
    buffer      Batch -> Batch                       after the reward
    advantage   (B,) -> (B,) or (B, T)               after the buffer
    select      Batch -> Batch with fewer rows       after the advantage
    weight      (B, T) mask -> (B, T)                a minibatch, before it is split
    objective   (B, T) logp -> (B, T) gain           inside the gradient
    auxiliary   tuple of `Auxiliary`                 inside the gradient
    gradient    optax optimiser -> optax optimiser   at the update, given ``batch=``
    ==========  ===================================  ===============================

    ``allocation`` and ``context`` run a second time after the update, with the finished
    batch (``reward`` is not None), so that they can learn from the outcome; only their
    state is kept then. Their ``init`` sees (N,) values, so that statistics are kept
    per prompt of the data set. ``objective`` states advance once per minibatch, from
    the finished columns. A recipe of states has the same field names.
    """

    curriculum: Any = identity()
    allocation: Any = identity()
    context: Any = identity()
    behaviour: Any = identity()
    logits: Any = identity()
    reward: Any = identity()
    buffer: Any = identity()
    advantage: Any = identity()
    select: Any = identity()
    weight: Any = identity()
    objective: Any = identity()
    auxiliary: Any = ()
    gradient: Any = None


def is_identity(transform: Transform) -> bool:
    """True for the part `identity`, whose slot can be skipped."""
    return transform.label is not None and transform.label.name == "identity"


def describe(recipe: Recipe | Transform) -> str:
    """Prints slots and hyper-parameters, one slot a line.

    Example:
      >>> import gpo
      >>> gpo.describe(gpo.advantage.center())
      "advantage.center(by='group', baseline=mean)"
    """
    if not isinstance(recipe, Recipe):
        return _show(recipe)
    slots = recipe._asdict().items()
    shown = {n: _show(t) for n, t in slots if t != () and t is not None}
    kept = {n: s for n, s in shown.items() if s != "identity()"}
    return "\n".join(f"{name:<11}{text}" for name, text in kept.items())


def _show(value) -> str:
    label = value if isinstance(value, Label) else getattr(value, "label", None)
    if isinstance(label, Label):
        arguments = []
        for name, v in label.arguments.items():
            if isinstance(v, tuple) and v and all(_has_label(x) for x in v):
                arguments += [_show(x) for x in v]
            elif isinstance(v, dict) and v and all(_has_label(x) for x in v.values()):
                arguments += [f"{k}={_show(x)}" for k, x in v.items()]
            else:
                arguments.append(_show(v) if _has_label(v) else f"{name}={_show(v)}")
        return f"{label.name}({', '.join(arguments)})"
    if isinstance(value, Auxiliary):
        return f"({_show(value.weight)}, {_show(value.objective)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_show, value))})"
    if isinstance(value, (jax.Array,)) or hasattr(value, "dtype"):
        return str(value.tolist() if value.size <= 8 else value.shape)
    if callable(value):
        return getattr(value, "__qualname__", repr(value)).split(".<locals>")[0]
    return repr(value)


def _has_label(value) -> bool:
    labelled = isinstance(value, Label) or hasattr(value, "label")
    return labelled or isinstance(value, Auxiliary)


def credit(recipe: Recipe, states: Recipe, batch: Batch, key) -> tuple[Batch, Recipe]:
    """Scored rollouts to rollouts with advantages: reward, buffer, advantage, select.

    A row whose reward is NaN is not live: it votes in no statistic and gets advantage 0.

    Args:
      recipe: the transforms.
      states: their states (`init_states`).
      batch: with ``reward``.
      key: PRNG key or None.

    Returns:
      The batch with ``reward`` (B,), ``advantage`` and ``live``, perhaps with fewer
      rows, and the new states.
    """
    batch = alive(batch)
    keys = [None] * 4 if key is None else list(jax.random.split(key, 4))
    with jax.named_scope("reward"):
        reward, s_reward = recipe.reward.update(
            batch.reward, states.reward, batch, keys[0]
        )
    checks.require(
        reward.ndim == 1,
        f"the reward slot must return (B,), received {reward.shape}: several rewards "
        "need a part that merges them, for example gpo.reward.total(weights)",
    )
    batch = alive(batch.replace(reward=reward))
    with jax.named_scope("buffer"):
        batch, s_buffer = recipe.buffer.update(batch, states.buffer, batch, keys[1])
    with jax.named_scope("advantage"):
        advantage, s_advantage = recipe.advantage.update(
            batch.reward, states.advantage, batch, keys[2]
        )
    level = "rollout" if advantage.ndim == 1 else "token"
    valid = batch.valid(level, advantage)
    batch = batch.replace(advantage=jnp.where(valid, advantage, 0))
    with jax.named_scope("select"):
        batch, s_select = recipe.select.update(batch, states.select, batch, keys[3])
    return batch, states._replace(
        reward=s_reward, buffer=s_buffer, advantage=s_advantage, select=s_select
    )


def alive(batch: Batch) -> Batch:
    """Rows without any reward leave the statistics; their NaN must not travel on."""
    reward = batch["reward"]
    missing = jnp.isnan(reward)
    dead = missing if reward.ndim == 1 else missing.all(-1)
    live = jnp.ones(reward.shape[0], bool) if batch.live is None else batch.live
    kept = jnp.where(missing, 0, reward) if reward.ndim == 1 else reward
    return batch.replace(live=live & ~dead, reward=kept)


def weigh(recipe: Recipe, states: Recipe, batch: Batch, key) -> tuple[Batch, Recipe]:
    """Sets ``batch.weight`` (B, T), outside the gradient and before any split."""
    with jax.named_scope("weight"):
        mask = batch.valid("token").astype(batch["old_logp"].dtype)
        weight, state = recipe.weight.update(mask, states.weight, batch, key)
    return batch.replace(weight=jax.lax.stop_gradient(weight)), states._replace(
        weight=state
    )


def gain(objective: Transform, state, batch: Batch, key):
    """``(B, T)`` gains of an objective at ``batch.logp``, and its next state."""
    with jax.named_scope("objective"):
        return objective.update(batch["logp"], state, batch, key)


def surrogate(objective: Transform, state, batch: Batch, key):
    """``-Σ weight · gain`` over valid tokens: microbatches only add partial sums."""
    gains, _ = gain(objective, state, batch, key)
    valid = batch.valid("token", gains)
    return -jnp.sum(jnp.where(valid, batch["weight"] * gains, 0))


def init_states(recipe: Recipe, **values) -> Recipe:
    """A recipe of states; ``values`` are each slot's value or its ShapeDtypeStruct.

    Slots without a value keep an empty state; ``gradient`` keeps its state with the
    optimiser.
    """
    states = {}
    for slot, transform in recipe._asdict().items():
        if slot == "auxiliary":
            shape = values.get("weight", values.get("objective"))
            states[slot] = tuple(
                (a.weight.init(shape), a.objective.init(shape)) for a in transform
            )
        elif slot == "gradient" or slot not in values:
            states[slot] = ()
        else:
            states[slot] = transform.init(values[slot])
    return Recipe(**states)


def loss(recipe: Recipe, logp, *, key=None, **columns):
    """The scalar that a recipe minimises, from plain arrays, without any model.

    ``loss = -Σ_{b,t} weight[b,t] · gain[b,t]`` plus the auxiliary terms.

    Args:
      recipe: for example ``gpo.recipes.dapo()``.
      logp: (B, T) log-probs of the tokens under the policy in training; the loss is
        differentiable in it (and in ``entropy``, where the recipe uses it).
      key: PRNG key, for recipes with stochastic parts.
      **columns: ``old_logp`` (B, T) and ``advantage`` (B,) or (B, T), or instead of
        the advantage ``reward`` (B,) or (B, K), from which the recipe's own reward and
        advantage slots compute it; ``group`` (B,) ids; ``mask`` (B, T), default all
        ones; ``live`` (B,); and what else the recipe reads (``entropy``, ``ref_logp``,
        ``old_entropy``, ...). Masked slots may hold NaN.

    Returns:
      ``(loss, metrics)``: a scalar and a dict of scalars (`gpo.metrics.summary`).

    Raises:
      ValueError: neither reward nor advantage is given, a column is missing, or shapes
        do not fit.

    Example:
      >>> import gpo, jax.numpy as jnp
      >>> logp = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.25]]))
      >>> value, _ = gpo.loss(
      ...     gpo.recipes.grpo(), logp, old_logp=logp, reward=[1.0, 0.0], group=[0, 0]
      ... )
      >>> abs(float(value)) < 1e-6
      True

    Reference: library word; each recipe names its paper.
    """
    logp = jnp.asarray(logp)
    checks.rank("logp", logp, 2)
    columns = {k: _column(k, v, logp) for k, v in columns.items() if v is not None}
    columns.setdefault("mask", jnp.ones(logp.shape, bool))
    columns.setdefault("old_logp", jax.lax.stop_gradient(logp))
    for name in ("mask", "old_logp", "entropy", "ref_logp"):
        if name in columns:
            checks.same_shape(**{"logp": logp, name: columns[name]})
    batch = Batch.of(logp=logp, **columns)
    shapes = {"reward": batch.get("reward"), "advantage": logp[:, 0], "buffer": batch}
    shapes |= {"weight": logp, "objective": logp, "select": batch}
    if shapes["reward"] is None:
        checks.require(
            batch.advantage is not None,
            "gpo.loss needs either advantage=... or reward=..., received neither",
        )
        del shapes["reward"]
    states = init_states(recipe, **shapes)
    keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
    if batch.reward is not None and batch.advantage is None:
        batch, states = credit(recipe, states, batch, keys[0])
    batch, states = weigh(recipe, states, batch, keys[1])
    value = surrogate(recipe.objective, states.objective, batch, keys[2])
    for term, (w_state, o_state) in zip(
        recipe.auxiliary, states.auxiliary, strict=True
    ):
        checks.require(
            term.source is None,
            "this recipe has an auxiliary term over other tokens, which needs a model: "
            "use gpo.train.make_step, or drop the term with _replace(auxiliary=())",
        )
        mask = batch.valid("token").astype(logp.dtype)
        weight, _ = term.weight.update(mask, w_state, batch, None)
        own = batch.replace(weight=jax.lax.stop_gradient(weight))
        value = value + surrogate(term.objective, o_state, own, keys[2])
    return value, metrics.summary(batch)


def _column(name: str, value, logp):
    if isinstance(value, (Plan, dict)):
        return jax.tree.map(jnp.asarray, value)
    value = jnp.asarray(value)
    counted = name in ("reward", "advantage") and value.dtype.kind in "iub"
    return value.astype(logp.dtype) if counted else value


__all__ = [
    "Auxiliary", "Plan", "Recipe", "alive", "credit", "describe", "gain", "init_states",
    "is_identity", "loss", "surrogate", "weigh",
]  # fmt: skip
