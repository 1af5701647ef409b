"""The step: invariant to how it is split, compiled once, and careful with bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import train_cases as cases

import gpo
from gpo import sampling
from gpo.rollout import decode
from gpo.tasks import arithmetic

KEY = jax.random.key(9)
# Adam would blow the rounding of a vanishing gradient up to a full step
SGD = optax.sgd(0.1)


def learnt(step, state, batch):
    return jax.jit(step.learn)(state, batch, KEY)


def fresh(state):
    return state._replace(opt=SGD.init(state.params))


@pytest.fixture(scope="module")
def whole():
    state, batch = cases.sampled()
    return learnt(cases.make_step(optimiser=SGD), fresh(state), batch)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_microbatches_do_not_matter(whole, parts):
    state, batch = cases.sampled()
    step = cases.make_step(optimiser=SGD, microbatches=parts)
    after, done = learnt(step, fresh(state), batch)
    assert cases.furthest(after.params, whole[0].params) < 1e-6
    assert cases.furthest(done["loss"], whole[1]["loss"]) < 1e-6
    assert cases.furthest(done["logp"], whole[1]["logp"]) < 1e-6


def test_the_update_moves(whole):
    assert cases.furthest(whole[0].params, cases.params()) > 1e-3
    assert whole[1]["grad_norm"] > 1e-3


def test_ragged_groups_learn_and_microbatches_do_not_matter():
    recipe = gpo.recipes.knapsack_grpo(low=2, high=8)
    step = cases.make_step(recipe, optimiser=SGD)
    batch, state = jax.jit(step.generate)(cases.fresh(step), jax.random.key(5))
    assert batch.plan is not None
    assert batch.plan.width is None
    one, _ = learnt(step, state, batch)
    four, _ = learnt(
        cases.make_step(recipe, optimiser=SGD, microbatches=4), state, batch
    )
    assert cases.furthest(one.params, four.params) < 1e-6
    assert cases.furthest(one.params, state.params) > 1e-3


def test_step_is_generate_then_learn_and_compiles_once():
    step = cases.plain()
    state = cases.fresh(step)
    k_generate, k_learn = jax.random.split(jax.random.fold_in(state.key, state.step))
    batch, sampled = jax.jit(step.generate)(state, k_generate)
    halves, batch = jax.jit(step.learn)(sampled, batch, k_learn)
    state, found, metrics = step.step(state)
    np.testing.assert_array_equal(found.tokens, batch.tokens)
    assert cases.furthest(state.params, halves.params) < 1e-6
    assert state.step == halves.step == 1
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-5)
    before = step.step.compilations()
    for _ in range(4):
        state, _, _ = step.step(state)
    assert step.step.compilations() == before
    assert state.step == 5


def test_a_seed_decides_every_bit():
    step = cases.plain()

    def two(seed):
        state, first, _ = step.step(cases.fresh(step, seed))
        return first, *step.step(state)[:2]

    assert cases.bits(two(1)) == cases.bits(two(1))
    first, state, second = two(1)
    assert not np.array_equal(first.tokens, second.tokens)
    other, state_other, _ = two(2)
    assert not np.array_equal(first.tokens, other.tokens)
    assert cases.bits(state.params) != cases.bits(state_other.params)


def test_members_of_a_group_differ_and_stay_in_their_lane():
    _, batch = cases.sampled()
    tokens = np.asarray(batch.tokens)
    assert len({row.tobytes() for row in tokens}) > 8
    for row, length in zip(tokens, np.asarray(batch.length), strict=True):
        ends = np.flatnonzero(row == cases.STOP)
        assert length == (ends[0] + 1 if ends.size else 3)
        assert not row[length:].any()


def test_minibatches_update_in_turn():
    step = cases.make_step(minibatches=2)
    state, batch = cases.sampled()
    after, done = learnt(step, state, batch)
    shift = np.abs(np.where(done.mask, done.logp - done.old_logp, 0)).max(1)
    moved = shift.reshape(4, 4).max(1) > 1e-4  # by group
    assert sorted(moved.tolist()) == [False, False, True, True]
    assert shift.reshape(4, 4)[~moved].max() < 1e-5  # the first sees ratio 1
    assert optax.tree.get(after.opt, "count") == 2
    assert after.step == 1


def test_epochs_go_over_all_rows_again():
    step = cases.make_step(epochs=2, minibatches=2)
    state, batch = cases.sampled()
    after, done = learnt(step, state, batch)
    shift = np.abs(np.where(done.mask, done.logp - done.old_logp, 0)).max(1)
    assert shift.reshape(4, 4).max(1).min() > 1e-4
    assert optax.tree.get(after.opt, "count") == 4
    assert np.isfinite(done["loss"])


CUTS = {
    "top_k": (lambda: sampling.top_k(4), lambda kept: (kept == 4).all()),
    "top_p": (lambda: sampling.top_p(0.6), lambda kept: (kept < 8).all()),
    "min_p": (lambda: sampling.min_p(0.4), lambda kept: (kept < 8).any()),
}


@pytest.mark.parametrize("name", CUTS)
def test_the_ratio_is_one_on_policy_whatever_cuts_the_support(name):
    cut, expected = CUTS[name]
    slot = gpo.chain(sampling.temperature(0.7), cut())
    step = cases.make_step(gpo.recipes.grpo()._replace(logits=slot), support=6)
    state = cases.fresh(step)
    batch, _ = jax.jit(step.generate)(state, KEY)
    logp, entropy = jax.jit(
        lambda params, batch, state: decode.token_logp(
            cases.MODEL, params, batch, logits=slot, state=state
        )
    )(state.params, batch, state.recipe.logits)
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(logp[mask], batch.old_logp[mask], atol=1e-5)
    np.testing.assert_allclose(entropy[mask], batch["old_entropy"][mask], atol=1e-5)
    kept = np.asarray((batch["support"] >= 0).sum(-1))[mask]
    assert kept.min() >= 1
    assert kept.max() <= 6
    assert expected(kept)
    chosen = (batch["support"] == batch.tokens[..., None]).any(-1)
    assert chosen[mask].all()


def unscored(batch):
    """The first two rows of each group have no reward."""
    score = arithmetic.digit_share(batch)
    return jnp.where(batch["row"] % 4 < 2, jnp.nan, score)


def test_rows_without_a_score_do_not_learn():
    step = cases.make_step(task=cases.make_task(unscored))
    state = cases.fresh(step)
    state, batch, metrics = step.step(state)
    assert batch.live.reshape(4, 4).tolist() == [[False, False, True, True]] * 4
    assert not np.asarray(batch.advantage).reshape(4, 4)[:, :2].any()
    assert not np.asarray(batch.weight).reshape(4, 4, 3)[:, :2].any()
    assert metrics["live"] == 0.5
    assert np.isfinite(metrics["loss"])


def test_an_update_that_is_not_finite_is_skipped_and_counted():
    step = cases.make_step(task=cases.ENDLESS)
    state = cases.fresh(step)
    before = cases.bits((state.params, state.opt))
    for count in (1, 2):
        state, _, metrics = step.step(state)
        assert (state.step, metrics["skipped"]) == (count, count)
        assert not np.isfinite(metrics["loss"])
    assert cases.bits((state.params, state.opt)) == before


def test_frozen_parameters_stay():
    step = cases.make_step(trainable=lambda path: "embed" not in path)
    state = cases.fresh(step)
    names = set(cases.bits(state.opt))
    assert any("mlp" in name for name in names)
    assert not any("embed" in name for name in names)
    _, batch = cases.sampled()
    after, _ = learnt(step, state, batch)
    kept = after.params["embed"]
    assert cases.bits(kept) == cases.bits(cases.params()["embed"])
    assert cases.furthest(after.params, cases.params()) > 1e-3


def test_groups_of_one_need_another_baseline():
    step = cases.make_step(rollouts=4)
    with pytest.raises(ValueError, match="at least 2 rollouts a prompt"):
        cases.fresh(step)
    cases.fresh(cases.make_step(gpo.recipes.reinforce_pp(), rollouts=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts": 14}, "rollouts=14 do not make equal groups for prompts=4"),
        ({"prompts": 13, "rollouts": 26}, "the data set has 12"),
        ({"length": 0}, "length must lie in"),
        ({"minibatches": 3}, "minibatches=3 does not divide the 16 rows"),
        ({"microbatches": 5}, "microbatches=5 does not divide the 16 rows"),
    ],
)
def test_what_does_not_fit_is_told(settings, message):
    with pytest.raises(ValueError, match=message):
        step = cases.make_step(**settings)
        state = jax.eval_shape(lambda: cases.fresh(step))
        step.step.lower(state)
