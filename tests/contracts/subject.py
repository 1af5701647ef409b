"""Parts, recipes, auxiliary terms and optax transformations under one signature."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import table
from contracts import sample

from gpo.base import Transform
from gpo.batch import Batch
from gpo.recipe import Auxiliary, Recipe, credit, gain, init_states, weigh


class Subject(NamedTuple):
    """``init(value, batch) -> state``, ``update(value, state, batch, key)``."""

    init: Callable[..., Any]
    update: Callable[..., Any]


def of(made) -> Subject:
    """What a row makes, as a Subject; recipes return their terms of the loss."""
    if isinstance(made, Recipe):
        return Subject(functools.partial(_init, made), functools.partial(_terms, made))
    if isinstance(made, Auxiliary):
        return of(Recipe(auxiliary=(made,)))
    if isinstance(made, Transform):
        return Subject(lambda value, batch: made.init(value), made.update)
    optimiser = made(optax.identity()) if callable(made) else made
    return Subject(
        lambda value, batch: optimiser.init(value),
        lambda value, state, batch, key: optimiser.update(value, state, batch=batch),
    )


def _init(recipe, logp, batch):
    values = {"reward": batch.reward, "buffer": batch, "advantage": batch.live}
    reward = jax.ShapeDtypeStruct(batch.live.shape, batch.reward.dtype)
    values |= {"advantage": reward, "select": batch, "weight": logp, "objective": logp}
    return init_states(recipe, **values)


def _terms(recipe, logp, states, batch, key):
    """(B, T) terms whose sum is the loss of `gpo.loss`."""
    batch, states = credit(recipe, states, batch.replace(logp=logp), key)
    batch, states = weigh(recipe, states, batch, key)
    gains, objective = gain(recipe.objective, states.objective, batch, key)
    terms = jnp.zeros_like(logp)
    if recipe.objective.label.name != "identity":
        terms = jnp.where(batch.valid("token"), batch["weight"] * gains, 0)
    for term, (w_state, o_state) in zip(
        recipe.auxiliary, states.auxiliary, strict=True
    ):
        own = batch if term.source is None else term.source(batch).replace(logp=logp)
        mask = own.valid("token", logp).astype(logp.dtype)
        weight, _ = term.weight.update(mask, w_state, own, key)
        gains, _ = term.objective.update(logp, o_state, own, key)
        valid = own.valid("token", logp)
        terms += jnp.where(valid, jax.lax.stop_gradient(weight) * gains, 0)
    return -terms, states._replace(objective=objective)


class Result(NamedTuple):
    """What one update did: output, new state, gradient wrt the floats of the value."""

    out: Any
    state: Any
    grad: Any


def _floats(tree):
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def _probe(out, batch):
    """A sum over what counts, with unequal weights."""
    total = 0.0
    batch = out if isinstance(out, Batch) else batch
    for x in _floats(out):
        share = jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
        counts = ~sample.invalid(x, batch) & jnp.isfinite(x)
        total += jnp.sum(jnp.where(counts, share * x, 0))
    return total


def _run(update, value, state, batch, key) -> Result:
    leaves, tree = jax.tree.flatten(value)
    chosen = [i for i, x in enumerate(leaves) if x.dtype.kind == "f"]

    def probed(floats):
        filled = dict(zip(chosen, floats, strict=True))
        mixed = [filled.get(i, x) for i, x in enumerate(leaves)]
        out, new = update(jax.tree.unflatten(tree, mixed), state, batch, key)
        return _probe(out, batch), (out, new)

    run = jax.grad(probed, has_aux=True)
    grad, (out, new) = run([leaves[i] for i in chosen])
    return Result(out, new, grad)


class Case(NamedTuple):
    """A row of the table, ready to run: compiled once for all contracts."""

    row: table.Row
    subject: Subject
    run: Callable[..., Result]
    eager: Callable[..., Result]

    def inputs(self, batch):
        """The row's value and columns on a batch."""
        batch = self.row.edit(batch)
        return self.row.value(batch), batch

    def __call__(self, value, batch, key=None) -> Result:
        """One compiled update from a fresh state, which is donated."""
        key = jax.random.key(0) if key is None else key
        return self.run(value, self.subject.init(value, batch), batch, key)

    def unjitted(self, value, batch) -> Result:
        """The same, one operation at a time: XLA makes some products selections."""
        state = self.subject.init(value, batch)
        return self.eager(value, state, batch, jax.random.key(0))


@functools.cache
def case(name: str) -> Case:
    """The case of a row by name."""
    row = table.BY_NAME[name]
    subject = of(row.make())
    eager = functools.partial(_run, subject.update)
    return Case(row, subject, jax.jit(eager, donate_argnums=1), eager)
