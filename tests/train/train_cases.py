"""Small pieces shared by the training tests: a task, a model, steps, a fake step."""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich import console

import gpo
from gpo import train
from gpo.models import decoder
from gpo.tasks import arithmetic, base

VOCAB, STOP = 8, 7


def text(ids):
    return "".join(str(i) for i in ids if i != STOP)


def make_task(score=arithmetic.digit_share, count=12, seed=0):
    """Prompts of 2 to 5 tokens with answers of 2, partial credit."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, STOP, rng.integers(2, 6)).tolist() for _ in range(count)]
    columns = {
        "answer": rng.integers(0, STOP, (count, 2)).astype(np.int32),
        "answer_length": np.full(count, 2, np.int32),
    }
    return base.make(prompts, score, stop=(STOP,), decode=text, columns=columns)


def endless(batch):
    """Partial credit, and an infinite reward for row 5."""
    return jnp.where(batch["row"] == 5, jnp.inf, arithmetic.digit_share(batch))


TASK, ENDLESS = make_task(), make_task(endless)
MODEL = decoder.decoder(decoder.tiny(VOCAB, layers=1, dim=16, heads=2))


@functools.cache
def params():
    # sharper than an initial model, so that rows differ in what they say
    return jax.tree.map(lambda x: x * 1.5, MODEL.init(jax.random.key(3)))


def make_step(recipe=None, task=TASK, optimiser=None, **settings):
    """A step of 4 prompts x 4 rollouts x 3 tokens."""
    recipe = gpo.recipes.grpo() if recipe is None else recipe
    optimiser = optax.adam(1e-2) if optimiser is None else optimiser
    settings = {"prompts": 4, "rollouts": 16, "length": 3} | settings
    return train.make_step(MODEL, recipe, task, optimiser, **settings)


def fresh(step, seed=1, reference=None):
    return step.init(params(), jax.random.key(seed), reference)


@functools.cache
def plain():
    """The plain GRPO step, compiled once for all tests of a process."""
    return make_step()


@functools.cache
def sampled():
    """(state, batch): what the plain step samples first."""
    step = plain()
    state = fresh(step)
    batch, state = jax.jit(step.generate)(state, jax.random.key(5))
    return state, batch


def about(recipe=None, task=TASK, model=MODEL, **settings):
    recipe = gpo.recipes.grpo() if recipe is None else recipe
    return train.about(model, recipe, task, **settings)


def bits(tree):
    """Leaves as bytes, with their paths: for comparisons that allow no rounding."""

    def one(x):
        key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if key else x).tobytes()

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(p): one(x) for p, x in leaves}


def furthest(a, b) -> float:
    """The largest difference between two trees of arrays."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def screen(terminal=False):
    """A console that writes into a string: ``console.file.getvalue()``."""
    return console.Console(
        file=io.StringIO(), width=100, force_terminal=terminal, highlight=False
    )


def fake_state(step=0, size=4):
    return train.TrainState(
        step=jnp.int32(step),
        key=jax.random.key(0),
        params={"w": jnp.arange(size, dtype=jnp.float32)},
        opt=(),
        prompt_logits=jnp.zeros(3),
        recipe=gpo.Recipe(*[()] * len(gpo.Recipe._fields)),
        sampler=(),
        reference=None,
        skipped=jnp.int32(0),
    )


def fake_batch(**columns):
    rows = jnp.arange(4, dtype=jnp.int32)
    plan = gpo.Plan(
        contexts=jnp.asarray(TASK.prompts[:2]),
        length=jnp.asarray(TASK.length[:2]),
        context=rows // 2,
        prompt=rows // 2,
        group=rows // 2,
        row=rows,
        width=2,
    )
    batch = gpo.Batch(
        plan=plan,
        tokens=jnp.array([[1, 2, 7], [3, 7, 0], [4, 5, 6], [7, 0, 0]], jnp.int32),
        length=jnp.array([3, 2, 3, 1], jnp.int32),
        mask=jnp.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]], bool),
        live=jnp.ones(4, bool),
        logp=-jnp.ones((4, 3)),
        reward=jnp.array([1.0, 1.0, 0.0, 1.0]),
        advantage=jnp.array([0.0, 0.0, -0.5, 0.5]),
    )
    return batch.replace(loss=jnp.float32(0), **columns)


def fake_step(during=lambda step: None, skip=(), **columns):
    """A step that only counts: for tests of what is around it.

    ``during(n)`` runs inside step n; steps in ``skip`` report a non-finite update.
    """

    def run(state):
        done = int(state.step) + 1
        during(done)
        bad = done in skip
        state = state._replace(
            step=state.step + 1,
            params=jax.tree.map(lambda x: x + 1, state.params),
            skipped=jnp.int32(int(state.skipped) + 1 if bad else 0),
        )
        metrics = {
            "reward": jnp.float32(0.5),
            "entropy": jnp.float32("nan" if bad else 1.0),
            "no_signal": jnp.float32(0.25),
            "loss": jnp.float32("nan" if bad else 0.1),
            "skipped": state.skipped,
        }
        return state, fake_batch(**columns), metrics

    return train.Step(lambda *a: fake_state(), None, None, run)  # type: ignore[arg-type]
