"""Hints: one prompt, several contexts; and the terms that read other contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts import sample

import gpo
from gpo.auxiliary.terms import demonstrations, plain_prompt
from gpo.context.hints import insert

HINTS = [[91, 92], [95]]


def plan(prompts=3, rollouts=4):
    rows = prompts * rollouts
    group = jnp.repeat(jnp.arange(prompts, dtype=jnp.int32), rollouts)
    return gpo.Plan(
        contexts=jnp.asarray([[11, 12, 13], [21, 0, 0], [31, 32, 0]], jnp.int32),
        length=jnp.asarray([3, 1, 2], jnp.int32), context=group, prompt=group + 7,
        group=group, row=jnp.arange(rows, dtype=jnp.int32), width=rollouts,
    )  # fmt: skip


def hinted(dropout=0.5, at=1, seed=0, of=None):
    part = gpo.context.hints(HINTS, dropout, at)
    return gpo.apply(part, of or plan(), key=jax.random.key(seed))


def test_insert_puts_a_hint_into_every_prompt():
    contexts, length = insert(
        plan().contexts, plan().length, jnp.asarray([91, 92]), 2, 1
    )
    assert contexts.tolist() == [
        [11, 91, 92, 12, 13], [21, 91, 92, 0, 0], [31, 91, 92, 32, 0]
    ]  # fmt: skip
    assert length.tolist() == [5, 3, 4]
    # a padded hint of one token, at the front
    contexts, length = insert(
        plan().contexts, plan().length, jnp.asarray([95, 0]), 1, 0
    )
    assert contexts[:2].tolist() == [[95, 11, 12, 13, 0], [95, 21, 0, 0, 0]]
    assert length.tolist() == [4, 2, 3]


def test_hints_lay_out_plain_prompts_then_each_hint():
    found = hinted()
    assert found.contexts.shape == (9, 5)
    assert found.length.tolist() == [3, 1, 2, 5, 3, 4, 4, 2, 3]
    assert found.contexts[:3, :3].tolist() == plan().contexts.tolist()
    assert found.contexts[4].tolist() == [21, 91, 92, 0, 0]
    assert found.contexts[8].tolist() == [31, 95, 32, 0, 0]
    assert found.width is None
    assert found.prompt.tolist() == plan().prompt.tolist()
    assert found.group.tolist() == plan().group.tolist()


def test_rows_are_dealt_to_hints_in_equal_blocks():
    context = np.asarray(hinted(dropout=0.0).context).reshape(3, 4)
    assert context.tolist() == [[3, 3, 6, 6], [4, 4, 7, 7], [5, 5, 8, 8]]
    dropped = hinted(dropout=1.0)
    assert dropped.context.tolist() == plan().group.tolist()


def test_dropout_has_its_rate_and_ignores_the_order_of_rows():
    plain = np.mean([
        np.mean(np.asarray(hinted(0.3, seed=s).context) < 3) for s in range(60)
    ])  # fmt: skip
    np.testing.assert_allclose(plain, 0.3, atol=0.05)
    order = jnp.asarray(np.random.default_rng(0).permutation(12))
    start = plan()
    columns = ("context", "prompt", "group", "row")
    moved = start.replace(**{n: getattr(start, n)[order] for n in columns})
    np.testing.assert_array_equal(
        hinted(of=moved).context, hinted(of=start).context[order]
    )


def test_hints_must_be_there():
    for bad in ([], [[1], []]):
        with pytest.raises(ValueError, match="non-empty lists of token ids, received"):
            gpo.context.hints(bad)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\]"):
        gpo.context.hints([[1]], 1.5)


def test_distillation_reads_the_plain_prompt():
    batch = gpo.Batch(plan=hinted(dropout=0.0), tokens=jnp.zeros((12, 2), jnp.int32))
    found = plain_prompt(batch)
    assert found.plan.context.tolist() == plan().group.tolist()
    assert found.tokens is batch.tokens


def test_one_demonstration_a_context():
    batch = sample.batch()
    demo = jnp.arange(sample.ROWS * 4, dtype=jnp.int32).reshape(-1, 4)
    batch = batch.replace(demo=demo, demo_length=batch["row"] % 4)
    found = demonstrations(batch)
    first = [list(sample.GROUP).index(c) for c in range(sample.CONTEXTS)]
    assert found.tokens.tolist() == demo[jnp.asarray(first)].tolist()
    assert found.length.tolist() == [r % 4 for r in first]
    assert found.mask.sum(1).tolist() == found.length.tolist()
    assert found.plan.context.tolist() == [0, 1, 2, 3]
    assert found.plan.width == 1
    assert found["prompt"].tolist() == [4, 0, 5, 2]
    # an empty demonstration and a context without rows are not live
    assert found.live.tolist() == [r % 4 > 0 for r in first]
    alone = batch.replace(plan=batch.plan.replace(
        context=jnp.zeros_like(batch["group"])))  # fmt: skip
    assert demonstrations(alone).live.tolist()[1:] == [False, False, False]


def test_demonstrations_are_imitated():
    """The term is minus coef times the mean log-likelihood of the demonstrations."""
    term = gpo.auxiliary.demonstration(0.5)
    tokens = term.source(sample.batch())
    logp = -jnp.arange(1.0, 17.0).reshape(4, 4)
    mask = tokens.valid("token", logp).astype(jnp.float32)
    weight, _ = term.weight.update(mask, term.weight.init(mask), tokens, None)
    gain, _ = term.objective.update(logp, (), tokens, None)
    votes = np.asarray(tokens.mask & tokens.live[:, None])
    expected = 0.5 * np.asarray(logp)[votes].mean()
    np.testing.assert_allclose(jnp.sum(weight * gain), expected, rtol=1e-6)
