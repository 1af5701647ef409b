"""Every recipe lifts the reward of a tiny task, on average over two seeds."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import gpo
from experiments import arena
from gpo.models.decoder import decoder, tiny
from gpo.tasks import arithmetic, base

CONFIG = arena.Config(seeds=2, steps=40)
MODEL = decoder(tiny(13))
# hints: the plus sign before the prompt, which teaches nothing and must not hurt
ARGUMENTS = {"nudge": ([[10]],), "dapo": (0.2, 0.28, 4, 1)}
ODD = dataclasses.replace(CONFIG, group=9)


@functools.cache
def start():
    """The task and two models after the warm-up."""
    task = arithmetic.tiny_addition(1)
    keys = jax.random.split(jax.random.key(0), CONFIG.seeds)

    def one(key):
        return arena.warm_up(MODEL, task, key, CONFIG.warmup, CONFIG.learning_rate)

    return task, jax.jit(jax.vmap(one))(keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", gpo.recipes.__all__)
def test_lifts_the_reward(name):
    task, params = start()
    if name == "gdpo":
        score = base.stack(base.exact(task.stop), arithmetic.right_length)
        task = task._replace(score=score)
    recipe = getattr(gpo.recipes, name)(*ARGUMENTS.get(name, ()))
    config = ODD if name == "mc_grpo" else CONFIG
    curves = arena.compete(config, MODEL, task, recipe, params)
    reward = curves["reward"].mean(0)
    assert np.isfinite(reward).all() and not curves["skipped"].any()
    assert reward[-5:].mean() > reward[:5].mean() + 0.05, reward
