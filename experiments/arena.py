"""Recipes side by side on a small task, from a tiny transformer's first steps.

Question: which recipe learns what from the same number of rollouts?
Setting: addition on a vocabulary of its own (`gpo.tasks.arithmetic.tiny_addition`),
scored on the device; a short supervised warm-up, so that some rollouts are right, then
reinforcement learning. Seeds are one vmapped axis; all steps of a recipe are one
compiled scan.
Expectation: every recipe lifts the reward; differences between them are small beside
the interval over seeds unless the log says otherwise.

    python -m experiments.arena
    python -m experiments.arena --recipes gpo.recipes.grpo gpo.recipes.dapo --seeds 5
"""

import dataclasses
import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import rich
import rich.table

from gpo import cli, metrics, tasks
from gpo.batch import Batch, Plan
from gpo.models.decoder import Model, decoder, tiny
from gpo.rollout.decode import token_logp
from gpo.train import make_step

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the arena."""

    recipes: tuple[str, ...] = ("gpo.recipes.grpo",)
    """dotted paths of functions that return a recipe"""
    seeds: int = 5
    """runs of each recipe, side by side in one program"""
    steps: int = 100
    """reinforcement learning steps"""
    warmup: int = 120
    """supervised steps before"""
    prompts: int = 64
    """prompts a step"""
    group: int = 8
    """rollouts a prompt"""
    digits: int = 1
    """places of each number"""
    radix: int = 10
    """base of the number system"""
    dim: int = 64
    """width of the model"""
    layers: int = 2
    """layers of the model"""
    learning_rate: float = 1e-3
    """Adam's step size, in warm-up and reinforcement learning"""
    folder: str = "runs/arena"
    """where tables and plots go"""


def warm_up(
    model: Model, task: tasks.Task, key, steps: int, rate: float, rows: int = 64
):
    """Parameters after ``steps`` of maximum likelihood on random right answers."""
    optimiser = optax.adam(rate)
    demos = tasks.base.demonstrations(task)
    tables = jax.tree.map(jnp.asarray, (task.prompts, task.length, *demos))
    own = jnp.arange(rows, dtype=jnp.int32)

    def loss(params, key):
        chosen = jax.random.randint(key, (rows,), 0, len(task.prompts))
        prompts, length, tokens, size = (x[chosen] for x in tables)
        plan = Plan(prompts, length, own, chosen, own, own, width=1)
        logp, _ = token_logp(model, params, Batch(plan, tokens=tokens, length=size))
        mask = jnp.arange(tokens.shape[1])[None] < size[:, None]
        return -metrics.masked_mean(logp, mask)

    def step(carry, key):
        params, opt = carry
        with jax.numpy_dtype_promotion("standard"):
            grads = jax.grad(loss)(params, key)
            updates, opt = optimiser.update(grads, opt)
            return (optax.apply_updates(params, updates), opt), None

    k_init, k_steps = jax.random.split(key)
    params = model.init(k_init)
    keys = jax.random.split(k_steps, steps)
    return jax.lax.scan(step, (params, optimiser.init(params)), keys)[0][0]


def compete(config: Config, model: Model, task: tasks.Task, recipe, params) -> Any:
    """(seeds, steps) curves of every metric for one recipe."""
    training = make_step(
        model, recipe, task, optax.adam(config.learning_rate),
        prompts=config.prompts, rollouts=config.prompts * config.group,
        length=config.digits + 2,
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(1), config.seeds)
    states = jax.vmap(training.init)(params, keys)

    def body(state, _):
        state, _, numbers = jax.vmap(training.step)(state)
        return state, numbers

    run = jax.jit(lambda s: jax.lax.scan(body, s, None, config.steps)[1])
    return jax.tree.map(lambda x: np.asarray(x).T, run(states))


def interval(values) -> float:
    """Half width of the 95 % interval of a mean over seeds (normal)."""
    return float(1.96 * np.std(values, ddof=1) / np.sqrt(len(values)))


def report(config: Config, results: dict) -> None:
    """Prints the table and writes curves.png and results.json."""
    folder = pathlib.Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = rich.table.Table(title="reward, mean and 95 % interval over seeds")
    for column in ("recipe", "first 5 steps", "last 5 steps", "no signal", "seconds"):
        table.add_column(column)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for path, result in results.items():
        curves = result["curves"]
        ends = [curves["reward"][:, s].mean(1) for s in (slice(5), slice(-5, None))]
        shown = [f"{x.mean():.3f} ± {interval(x):.3f}" for x in ends]
        silent = f"{curves['no_signal'][:, -5:].mean():.2f}"
        table.add_row(path, *shown, silent, f"{result['seconds']:.0f}")
        for axis, name in zip(axes, ("reward", "entropy"), strict=True):
            mean, at = curves[name].mean(0), np.arange(config.steps)
            half = 1.96 * curves[name].std(0, ddof=1) / np.sqrt(config.seeds)
            axis.plot(at, mean, label=path.rsplit(".", 1)[-1])
            axis.fill_between(at, mean - half, mean + half, alpha=0.2)
            axis.set(xlabel="step", ylabel=name)
    axes[0].legend()
    figure.savefig(folder / "curves.png", dpi=120)
    plt.close(figure)
    plain = {
        path: {k: v.tolist() for k, v in r["curves"].items()}
        for path, r in results.items()
    }
    about = {"config": dataclasses.asdict(config), "curves": plain}
    (folder / "results.json").write_text(json.dumps(about))
    rich.print(table)
    rich.print(f"curves and numbers in {folder}")


def main(config: Config) -> dict:
    """Runs the arena; returns each recipe's curves and summary."""
    task = tasks.arithmetic.tiny_addition(config.digits, radix=config.radix)
    model = decoder(tiny(config.radix + 3, layers=config.layers, dim=config.dim))
    keys = jax.random.split(jax.random.key(0), config.seeds)
    params = jax.jit(
        jax.vmap(lambda k: warm_up(model, task, k, config.warmup, config.learning_rate))
    )(keys)
    results = {}
    for path in config.recipes:
        begun = time.perf_counter()
        curves = compete(config, model, task, cli.make(path), params)
        results[path] = {"curves": curves, "seconds": time.perf_counter() - begun}
    report(config, results)
    return results


if __name__ == "__main__":
    main(cli.parse(Config))
