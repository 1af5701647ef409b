"""`gpo.apply`, `gpo.loss`, `gpo.describe`: what users import on their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts import sample

import gpo
from gpo import recipes

BATCH = sample.batch()
LOGP = BATCH.logp
COLUMNS = {n: BATCH[n] for n in ("old_logp", "mask", "live", "group")}


def test_apply_takes_lists_numpy_and_jax():
    part = gpo.advantage.center()
    expected = [0.5, -0.5]
    assert gpo.apply(part, [1.0, 0.0], group=[3, 3]).tolist() == expected
    for array in (np.asarray, jnp.asarray):
        found = gpo.apply(part, array([1.0, 0.0]), group=array([3, 3]))
        assert found.tolist() == expected
    assert gpo.apply(gpo.advantage.center(()), [1.0, 0.0]).tolist() == expected


def test_apply_takes_every_kind_of_value():
    assert gpo.apply(gpo.identity(), {"w": jnp.ones(2)})["w"].tolist() == [1, 1]
    kept = gpo.apply(gpo.select.keep_rows(3), BATCH)
    assert kept.rows == 3
    marked = gpo.apply(gpo.select.drop_pivot("version"), BATCH, version=BATCH["group"])
    assert int(marked.live.sum()) < int(BATCH.live.sum())
    plan = gpo.apply(gpo.context.hints([[1]]), BATCH.plan, key=jax.random.key(0))
    assert plan.contexts.shape == (2 * sample.CONTEXTS, 4)


def test_apply_is_differentiable_and_jittable():
    grad = jax.jit(
        jax.grad(lambda r: gpo.apply(gpo.advantage.center(), r, group=[0, 0, 0])[0])
    )(jnp.asarray([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(grad, [2 / 3, -1 / 3, -1 / 3], rtol=1e-6)


def test_loss_with_reward_is_loss_with_its_advantage():
    recipe = recipes.grpo()
    columns = COLUMNS | {"length": BATCH.length}
    advantage = gpo.apply(recipe.advantage, BATCH.reward, **columns)
    own, metrics = gpo.loss(recipe, LOGP, reward=BATCH.reward, **columns)
    given, _ = gpo.loss(recipe, LOGP, advantage=advantage, **columns)
    np.testing.assert_allclose(own, given, rtol=1e-6)
    live = np.asarray(BATCH.valid("rollout"))
    np.testing.assert_allclose(metrics["reward"], BATCH.reward[live].mean(), rtol=1e-5)
    assert set(metrics) >= {"no_signal", "advantage", "ratio", "outside", "kl_old"}


def test_loss_is_the_weighted_gain():
    """By numpy, from the definition."""
    mask = np.asarray(BATCH.valid("token"))
    ratio = np.exp(np.asarray(LOGP - BATCH.old_logp))
    a = np.asarray(BATCH.advantage)[:, None]
    gain = np.minimum(ratio * a, np.clip(ratio, 0.8, 1.28) * a)
    expected = -gain[mask].mean()
    found, _ = gpo.loss(recipes.dapo(), LOGP, advantage=BATCH.advantage, **COLUMNS)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_loss_defaults_to_all_tokens_on_policy():
    value, grad = jax.value_and_grad(
        lambda x: gpo.loss(recipes.grpo(), x, reward=[1.0, 0.0], group=[0, 0])[0]
    )(jnp.zeros((2, 3)))
    np.testing.assert_allclose(value, 0, atol=1e-6)
    assert np.all(np.asarray(grad[0]) < 0)
    assert np.all(np.asarray(grad[1]) > 0)


def test_loss_takes_integer_rewards_and_advantages():
    whole, _ = gpo.loss(recipes.grpo(), LOGP, reward=[1, 0] * 8, **COLUMNS)
    floats, _ = gpo.loss(recipes.grpo(), LOGP, reward=[1.0, 0.0] * 8, **COLUMNS)
    np.testing.assert_allclose(whole, floats)
    whole, _ = gpo.loss(recipes.cispo(), LOGP, advantage=[1, -1] * 8, **COLUMNS)
    floats, _ = gpo.loss(recipes.cispo(), LOGP, advantage=[1.0, -1] * 8, **COLUMNS)
    np.testing.assert_allclose(whole, floats)


def test_a_missing_reward_is_not_a_zero():
    reward = BATCH.reward.at[2].set(jnp.nan)
    dead = COLUMNS | {"live": BATCH.live.at[2].set(False)}
    value, grad = jax.value_and_grad(
        lambda x: gpo.loss(recipes.grpo(), x, reward=reward, **COLUMNS)[0]
    )(LOGP)
    other, _ = gpo.loss(recipes.grpo(), LOGP, reward=BATCH.reward, **dead)
    np.testing.assert_allclose(value, other, rtol=1e-6)
    assert np.all(np.asarray(grad)[2] == 0)


def test_several_rewards_need_a_merge():
    rewards = BATCH["rewards"]
    value, _ = gpo.loss(recipes.gdpo(), LOGP, reward=rewards, **COLUMNS)
    assert np.isfinite(value)
    with pytest.raises(ValueError, match=r"reward slot must return \(B,\)"):
        gpo.loss(recipes.grpo(), LOGP, reward=rewards, **COLUMNS)
    with pytest.raises(ValueError, match="total got 3 weights for 2 rewards"):
        gpo.loss(recipes.gdpo(1.0, 1.0, 1.0), LOGP, reward=rewards, **COLUMNS)


def test_token_level_advantages():
    tokens = jnp.broadcast_to(BATCH.advantage[:, None], LOGP.shape)
    per_row, _ = gpo.loss(recipes.dapo(), LOGP, advantage=BATCH.advantage, **COLUMNS)
    per_token, _ = gpo.loss(recipes.dapo(), LOGP, advantage=tokens, **COLUMNS)
    np.testing.assert_allclose(per_row, per_token, rtol=1e-6)


def test_auxiliary_terms_are_added():
    plain, _ = gpo.loss(recipes.grpo(), LOGP, advantage=BATCH.advantage, **COLUMNS)
    bonus = recipes.grpo()._replace(auxiliary=(gpo.auxiliary.entropy_bonus(0.5),))
    with_bonus, metrics = gpo.loss(
        bonus, LOGP, advantage=BATCH.advantage, entropy=BATCH.entropy, **COLUMNS
    )
    np.testing.assert_allclose(with_bonus, plain - 0.5 * metrics["entropy"], rtol=1e-5)


def test_a_plan_can_be_given():
    columns = {n: BATCH[n] for n in ("old_logp", "mask", "live", "length")}
    value, _ = gpo.loss(
        recipes.ar3po(), LOGP, reward=BATCH.reward, plan=BATCH.plan, **columns
    )
    assert np.isfinite(value)


ERRORS = [
    ({}, "either advantage=... or reward=..., received neither"),
    ({"reward": [1.0] * 16}, "no column 'group'.*Pass it as group="),
    (
        {"advantage": [1.0] * 16, "mask": jnp.ones((16, 4))},
        "these arrays must have one",
    ),
    ({"advantage": [1.0] * 16, "old_logp": jnp.ones((2, 5))}, "these arrays must have"),
    ({"advantage": [1.0] * 4}, "does not fit rows of shape"),
]


@pytest.mark.parametrize(("columns", "message"), ERRORS)
def test_errors_name_the_cure(columns, message):
    with pytest.raises(ValueError, match=message):
        gpo.loss(recipes.grpo(), LOGP, **columns)


def test_more_errors():
    with pytest.raises(
        ValueError, match=r"logp must have rank 2, received shape \(3,\)"
    ):
        gpo.loss(recipes.grpo(), jnp.zeros(3), advantage=[1.0] * 3)
    with pytest.raises(ValueError, match="no column 'ref_logp'"):
        gpo.loss(recipes.grpo(kl=0.1), LOGP, advantage=BATCH.advantage)
    with pytest.raises(ValueError, match="auxiliary term over other tokens"):
        gpo.loss(recipes.nudge([[1]]), LOGP, advantage=BATCH.advantage)
    with pytest.raises(ValueError, match=r"low must lie in \[0, 1\], received -0.1"):
        gpo.objective.trust.clip(-0.1)
    for bad in (lambda: gpo.sampling.temperature(0.0), lambda: gpo.sampling.top_k(0),
                lambda: gpo.sampling.top_p(1.5), lambda: gpo.weight.token_sum(0),
                lambda: gpo.reward.overlong(4, 5), lambda: gpo.select.keep_rows(0),
                lambda: gpo.weight.forking(2.0), lambda: gpo.allocation.knapsack(5, 4),
                lambda: gpo.curriculum.mopps(0.7, 0.3),
                lambda: gpo.behaviour.perturb(-1.0)):  # fmt: skip
        with pytest.raises(ValueError, match="must lie in .*received"):
            bad()


def test_describe_prints_slots_and_arguments():
    text = gpo.describe(recipes.dapo())
    assert text.splitlines() == [
        "advantage  advantage.zscore(by='group', ddof=1, eps=0.0001, scale_by=None)",
        "weight     weight.token_mean()",
        "objective  chain(ratio.token(), trust.clip(low=0.2, high=0.28))",
    ]
    assert "regulariser.kl(coef=0.04, estimator=k3)" in gpo.describe(
        recipes.grpo(kl=0.04)
    )
    assert "gradient.scale_by_ess(base=1.0)" in gpo.describe(recipes.vcpo_ess())
    assert "objective.entropy()" in gpo.describe(
        recipes.grpo()._replace(auxiliary=(gpo.auxiliary.entropy_bonus(0.1),))
    )
    assert "shrink=advantage.empirical_bayes()" in gpo.describe(
        gpo.named_chain(shrink=gpo.advantage.empirical_bayes())
    )


@pytest.mark.parametrize("name", recipes.__all__)
def test_every_recipe_can_be_described(name):
    arguments = ([[1, 2]],) if name == "nudge" else ()
    recipe = getattr(recipes, name)(*arguments)
    text = gpo.describe(recipe)
    assert "<" not in text, text
    assert "object at" not in text


def test_parts_are_labelled_by_users_names():
    assert gpo.objective.trust.clip().label.name == "trust.clip"
    assert gpo.advantage.center().label.name == "advantage.center"
    assert gpo.chain().label.name == "chain"

    @gpo.part
    def doubled(times: float = 2.0):
        """My own part."""
        return gpo.stateless(lambda value, batch: times * value)

    assert gpo.describe(doubled()) == "doubled(times=2.0)"
    assert gpo.apply(doubled(3.0), [1.0]).tolist() == [3.0]
