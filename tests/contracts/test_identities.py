"""Contract: the limits in which a method becomes another."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts import sample

import gpo
from gpo import advantage, objective, recipes, sampling, segment, weight
from gpo.objective import ratio, regulariser, trust

BATCH = sample.batch()
COLUMNS = {
    n: BATCH[n]
    for n in ("mask", "live", "group", "length", "entropy", "old_entropy", "ref_logp")
}
ON_POLICY = COLUMNS | {"old_logp": BATCH.logp}
OFF_POLICY = COLUMNS | {"old_logp": BATCH.old_logp}
REWARD = BATCH.reward


def same(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol),
                 a, b)  # fmt: skip


def run(recipe, columns=OFF_POLICY, reward=REWARD, logp=BATCH.logp):
    """Loss and gradient of a recipe on the sample."""
    return jax.value_and_grad(
        lambda logp: gpo.loss(recipe, logp, reward=reward, **columns)[0]
    )(logp)


def apply(part, value=REWARD, **more):
    return gpo.apply(part, value, **(OFF_POLICY | {"advantage": REWARD} | more))


SCORE = gpo.recipes.grpo()._replace(objective=objective.reinforce())


@pytest.mark.parametrize(
    "recipe",
    [
        recipes.grpo(),
        recipes.grpo(kl=0.0),
        recipes.gspo(0.2, 0.2),
        recipes.cispo(2.0)._replace(weight=weight.sequence_mean()),
        SCORE._replace(objective=gpo.chain(ratio.token(), trust.unclipped())),
    ],
)
def test_on_policy_gradients_are_those_of_reinforce(recipe):
    same(run(recipe, ON_POLICY)[1], run(SCORE, ON_POLICY)[1])


def test_on_policy_ratio_is_one_and_the_loss_is_the_mean_advantage():
    _, metrics = gpo.loss(recipes.grpo(), BATCH.logp, reward=REWARD, **ON_POLICY)
    same(metrics["ratio"], 1.0)
    same(metrics["ratio_max"], 1.0)
    same(metrics["outside"], 0.0)
    same(metrics["kl_old"], 0.0)


def test_leave_one_out_is_centring_times_n_over_n_minus_one():
    key, where = BATCH.key("group"), BATCH.valid("rollout")
    n = segment.count(key, where, jnp.float32)
    loo = apply(advantage.center(baseline=segment.leave_one_out))
    same(loo, apply(advantage.center()) * n / jnp.maximum(n - 1, 1))


def test_sequence_ratio_of_one_token_is_the_token_ratio():
    columns = {k: v[:, :1] if v.ndim == 2 else v for k, v in OFF_POLICY.items()}
    logp = BATCH.logp[:, :1]
    same(
        run(recipes.gspo(0.2, 0.2), columns, logp=logp),
        run(recipes.grpo(), columns, logp=logp),
    )


def test_without_a_cap_cispo_has_the_gradient_of_importance_weighting():
    plain = recipes.bnpo()._replace(
        objective=gpo.chain(ratio.token(), trust.unclipped())
    )
    same(run(recipes.cispo(1e9))[1], run(plain)[1])


def test_wide_clips_clip_nothing():
    plain = gpo.chain(ratio.token(), trust.unclipped())
    wide = gpo.chain(ratio.token(), trust.clip(1.0, 1e9))
    same(apply(wide, BATCH.logp), apply(plain, BATCH.logp))
    narrow = gpo.chain(ratio.token(), trust.clip())
    same(
        apply(gpo.chain(narrow, trust.dual(1e9)), BATCH.logp),
        apply(narrow, BATCH.logp),
    )


def test_contexts_weighed_alike_are_the_pooled_group():
    columns = {"context": BATCH["group"] + 4 * (BATCH["row"] % 3)}
    pooled = apply(advantage.center())
    same(apply(advantage.inter_intra(1.0), **columns), pooled)
    own = apply(advantage.center(("group", "context")), **columns)
    plain = columns["context"] == BATCH["group"]
    same(
        apply(advantage.inter_intra(0.0), **columns),
        jnp.where(plain, pooled, own),
    )
    same(apply(advantage.inter_intra(3.0), context=BATCH["group"]), pooled)


@pytest.mark.parametrize(
    ("within", "between", "baseline"), [(0.0, 1e6, "group"), (1e6, 0.0, "batch")]
)
def test_shrinkage_has_two_limits(within, between, baseline):
    part = advantage.empirical_bayes()
    many = jnp.float32(1e6)
    state = {
        "rollouts": (many, jnp.float32(0.4), many),
        "groups": (many, jnp.float32(0.4), many * between),
        "within": (many, jnp.float32(within), many),
    }
    found, _ = part.update(REWARD, state, BATCH, None)
    group = apply(advantage.center())
    batch = jnp.where(BATCH.valid("rollout"), REWARD - 0.4, 0)
    same(found, group if baseline == "group" else batch, atol=2e-3)


def test_aggregations_agree_on_rows_of_equal_length():
    full = OFF_POLICY | {"mask": jnp.ones_like(BATCH.mask)}
    dr_grpo = recipes.grpo()._replace(weight=weight.token_sum())
    same(run(recipes.bnpo(), full), run(recipes.grpo(), full))
    same(run(dr_grpo, full), run(recipes.grpo(), full))
    tokens = jnp.float32(sample.TOKENS)
    summed = recipes.grpo()._replace(weight=weight.sequence_sum())
    same(run(summed, full)[0], run(recipes.grpo(), full)[0] * tokens)


def test_all_tokens_are_forking_tokens_when_the_share_is_one():
    same(run(recipes.forking_tokens(1.0)), run(recipes.dapo()))


def test_one_reward_decoupled_is_whitened_grpo():
    whitened = recipes.grpo()._replace(
        advantage=gpo.chain(advantage.zscore(), advantage.zscore(()))
    )
    same(run(recipes.gdpo(), reward=REWARD[:, None]), run(whitened))


def test_groups_without_signal_do_not_shrink_gpg():
    dead = jnp.where(BATCH["group"] == 1, 1.0, REWARD)
    plain = recipes.gpg()._replace(advantage=advantage.center())
    same(run(recipes.gpg(), reward=dead)[1], run(plain, reward=dead)[1] * 4 / 3)
    same(run(recipes.gpg())[1], run(plain)[1])


def test_one_group_makes_batch_and_group_statistics_equal():
    one = OFF_POLICY | {"group": jnp.zeros_like(BATCH["group"])}
    same(run(recipes.reinforce_pp(), one), run(recipes.grpo(eps=1e-8), one))


def test_nudge_with_equal_weights_is_pooled_grpo():
    pooled = recipes.grpo()._replace(advantage=advantage.zscore(ddof=0, eps=1e-5))
    columns = OFF_POLICY | {"context": BATCH["group"] + 4 * (BATCH["row"] % 3)}
    nudge = recipes.nudge([[1]], ratio=1.0)._replace(auxiliary=())
    same(run(nudge, columns), run(pooled))


@pytest.mark.parametrize(
    "recipe", [recipes.mopps(), recipes.knapsack_grpo(), recipes.vcpo_ess()]
)
def test_recipes_that_change_the_rest_of_the_step_keep_the_loss(recipe):
    same(run(recipe), run(recipes.grpo()))


def test_nothing_stored_means_nothing_reused():
    plan = BATCH.plan
    columns = {k: v for k, v in OFF_POLICY.items() if k != "group"}
    same(run(recipes.ar3po(), columns | {"plan": plan}), run(recipes.grpo()))


def test_median_and_mean_agree_on_symmetric_groups():
    r, ids = jnp.asarray([-2.0, -1, 0, 1, 2]), [0] * 5
    mean = gpo.apply(advantage.center(), r, group=ids)
    same(gpo.apply(advantage.center(baseline=segment.lower_median), r, group=ids), mean)


@pytest.mark.parametrize(
    "part",
    [
        sampling.temperature(1.0),
        sampling.top_k(sample.VOCAB),
        sampling.top_p(1.0),
        sampling.min_p(0.0),
        gpo.identity(),
        gpo.chain(),
    ],
)
def test_sampling_parts_that_cut_nothing(part):
    logits = jnp.log(jnp.asarray([[0.5, 0.3, 0.2 - 2e-8, 1e-8], [1e-9, 0.1, 0.4, 0.5]]))
    assert np.array_equal(gpo.apply(part, logits), logits)


def test_the_largest_logit_alone_is_greedy():
    logits = jnp.sin(jnp.arange(33.0)).reshape(3, 11)
    greedy = gpo.apply(sampling.greedy(), logits)
    assert np.array_equal(gpo.apply(sampling.top_k(1), logits), greedy)
    assert np.array_equal(gpo.apply(sampling.top_p(0.0), logits), greedy)
    assert np.array_equal(gpo.apply(sampling.min_p(1.0), logits), greedy)


def test_parts_that_do_nothing():
    params = {"w": jnp.arange(3.0)}
    for part in (gpo.behaviour.perturb(0.0), gpo.behaviour.delay(0)):
        same(gpo.apply(part, params, key=jax.random.key(0)), params)
    kept = gpo.apply(gpo.select.keep_rows(sample.ROWS), BATCH)
    same(kept.replace(plan=None), BATCH.replace(plan=None))
    same(apply(weight.times(1.0)), REWARD)
    same(apply(gpo.reward.kl_penalty(0.0)), REWARD)
    same(apply(gpo.chain(advantage.center())), apply(advantage.center()))
    same(apply(gpo.weighted_sum((1.0, advantage.center()))), apply(advantage.center()))
    to_go = apply(advantage.kl_to_go(0.0))
    same(to_go, jnp.where(BATCH.valid("token"), REWARD[:, None], 0))


def test_no_regulariser_is_a_coefficient_of_zero():
    none = gpo.chain(ratio.token(), trust.clip(), regulariser.kl(0.0))
    same(run(recipes.grpo()._replace(objective=none)), run(recipes.grpo()))


def test_on_policy_every_row_is_effective():
    on = BATCH.replace(old_logp=BATCH.logp)
    updates = {"w": jnp.ones(3)}
    part = gpo.gradient.scale_by_ess()
    same(part.update(updates, part.init(updates), batch=on)[0], updates)


def test_effective_rows_have_no_scale():
    one = BATCH.replace(mask=jnp.ones_like(BATCH.mask), live=jnp.ones_like(BATCH.live))
    share = gpo.gradient.ess.effective_share
    same(share(one.replace(old_logp=one.old_logp + 30.0)), share(one))


def test_a_constant_schedule_is_its_factory():
    part = gpo.scheduled(
        lambda low, high: trust.clip(low, high),
        low=lambda step: 0.1,
        high=lambda step: 0.3,
    )
    r = jnp.exp(BATCH.logp - BATCH.old_logp)
    same(apply(part, r), apply(trust.clip(0.1, 0.3), r))


def test_nothing_known_is_a_uniform_allocation():
    shares = jnp.full((4,), 0.25)
    found = gpo.apply(
        gpo.allocation.knapsack(), shares, plan=BATCH.plan, candidates=[4, 0, 5, 2]
    )
    same(found, shares)
