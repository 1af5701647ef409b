"""Rows of the table of public bug reports that span several parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from contracts import sample

import gpo
from gpo import advantage, metrics, objective, recipes, sampling, segment, weight
from gpo.objective import regulariser
from gpo.recipe import Recipe, surrogate, weigh

NAN = float("nan")
# per-token losses [[1, 2, .], [3, 4, 5]] as gains, the masked one unknown
LOSSES = -jnp.asarray([[1.0, 2, NAN], [3, 4, 5]])
MASK = jnp.asarray([[True, True, False], [True] * 3])


def of_tokens(aggregation, **more) -> Recipe:
    """A loss that is the aggregate of given per-token losses."""
    return Recipe(weight=aggregation, objective=objective.likelihood(), **more)


@pytest.mark.parametrize(
    ("aggregation", "loss", "weights"),
    [
        (weight.sequence_mean(), 2.75, [[0.25, 0.25, 0], [1 / 6] * 3]),
        (weight.token_mean(), 3.0, [[0.2, 0.2, 0], [0.2] * 3]),
        (weight.token_sum(4), 1.875, [[0.125, 0.125, 0], [0.125] * 3]),
        (weight.sequence_sum(), 7.5, [[0.5, 0.5, 0], [0.5] * 3]),
    ],
)
def test_t3_aggregation(aggregation, loss, weights):
    value, grad = jax.value_and_grad(
        lambda x: gpo.loss(of_tokens(aggregation), x, mask=MASK, advantage=[0.0, 0])[0]
    )(LOSSES)
    np.testing.assert_allclose(value, loss, rtol=1e-6)
    np.testing.assert_allclose(grad, -np.asarray(weights), rtol=1e-6)


def test_t4_accumulation():
    """Microbatches [[1, 2]] and [[3, 4, 5], [6, 7]]: 28 / 7 = 4, not 3.25."""
    losses = jnp.asarray([[1.0, 2, 0], [3, 4, 5], [6, 7, 0]])
    mask = jnp.asarray([[1, 1, 0], [1, 1, 1], [1, 1, 0]], bool)
    batch = gpo.Batch.of(logp=-losses, old_logp=-losses, mask=mask)
    recipe = of_tokens(weight.token_mean())
    batch, _ = weigh(recipe, gpo.recipe.init_states(recipe, weight=losses), batch, None)
    parts = [
        jax.tree.map(lambda x, rows=rows: x[rows], batch).replace(whole=False)
        for rows in (slice(0, 1), slice(1, 3))
    ]
    values = [surrogate(recipe.objective, (), part, None) for part in parts]
    np.testing.assert_allclose(sum(values), 4.0, rtol=1e-6)


ALL = [r for r in table.RECIPES if r.name != "recipes.gdpo"]


def loss_of(recipe, batch, **more):
    """Loss and gradient of a recipe on a Batch."""
    names = ("mask", "live", "group", "length", "old_logp", "old_entropy", "ref_logp",
             "context", "plan")  # fmt: skip
    columns = {n: batch.plan if n == "plan" else batch[n] for n in names} | more
    del columns["group"], columns["context"]  # the plan has them
    return jax.value_and_grad(
        lambda logp: gpo.loss(recipe, logp, reward=batch.reward, **columns)[0]
    )(batch.logp)


@pytest.mark.parametrize("row", ALL, ids=lambda r: r.name)
def test_t6_nothing_to_learn_from(row):
    batch = sample.batch().replace(mask=jnp.zeros((sample.ROWS, sample.TOKENS), bool))
    recipe = row.make()._replace(auxiliary=())
    value, grad = loss_of(recipe, batch)
    assert float(value) == 0
    assert np.all(np.asarray(grad) == 0)


@pytest.mark.parametrize(
    ("aggregation", "loss"),
    [
        (weight.token_mean(), 1.0),
        # a live row without tokens adds nothing and still counts as a row
        (weight.sequence_mean(), 0.5),
        (weight.sequence_sum(), 1.5),
        (weight.token_sum(3), 0.5),
    ],
)
def test_t6_half_empty(aggregation, loss):
    mask = jnp.asarray([[1, 1, 1], [0, 0, 0]], bool)
    value, shown = gpo.loss(
        of_tokens(aggregation), -jnp.ones((2, 3)), mask=mask, advantage=[1.0, 1.0]
    )
    np.testing.assert_allclose(value, loss, rtol=1e-6)
    # metrics use the same mask: one row has tokens
    np.testing.assert_allclose(shown["live"], 0.5)


PADDED = {
    "grpo kl": recipes.grpo(kl=0.1),
    "dapo": recipes.dapo(),
    "gspo": recipes.gspo(0.2, 0.2),
    "cispo": recipes.cispo(),
    "rloo": recipes.rloo(),
    "gpg": recipes.gpg(),
    "dr_grpo": recipes.dr_grpo(budget=2),
    "bnpo": recipes.bnpo(),
}


@pytest.mark.parametrize("junk", [NAN, np.inf, -np.inf, 1e3])
@pytest.mark.parametrize("recipe", PADDED.values(), ids=PADDED.keys())
def test_t7_padding_is_like_no_padding(recipe, junk):
    def run(width, junk):
        def pad(x):
            return jnp.asarray([[x] + [junk] * (width - 1)] * 2)

        columns = {"old_logp": pad(-1.2), "ref_logp": pad(-0.9)}
        mask = jnp.asarray([[True] + [False] * (width - 1)] * 2)
        return jax.value_and_grad(
            lambda x: gpo.loss(recipe, x, mask=mask, advantage=[1.0, -0.5], **columns)[
                0
            ]
        )(pad(-1.0))

    value, grad = run(2, junk)
    alone, own = run(1, junk)
    np.testing.assert_allclose(value, alone, rtol=1e-6)
    np.testing.assert_allclose(grad[:, :1], own, rtol=1e-6)
    assert np.all(np.asarray(grad[:, 1]) == 0)


def test_t7_for_objectives_that_forget_the_mask():
    """The loss selects valid tokens, whatever a user's own objective does."""
    careless = Recipe(objective=gpo.stateless(lambda value, batch: jnp.exp(value)))
    logp = jnp.asarray([[0.0, NAN], [NAN, NAN]])
    value, grad = jax.value_and_grad(
        lambda x: gpo.loss(careless, x, mask=[[1, 0], [0, 0]], advantage=[1.0, 1.0])[0]
    )(logp)
    assert float(value) == -1
    np.testing.assert_array_equal(np.asarray(grad)[0, 0], -1)


@pytest.mark.parametrize(
    ("tau", "logp"), [(1.0, -0.407606), (0.5, -0.142932), (2.0, -0.680270)]
)
def test_t9_temperature(tau, logp):
    logits = gpo.apply(sampling.temperature(tau), jnp.asarray([[0.0, 1, 2]]))
    found = jax.nn.log_softmax(logits)[:, 2:]
    np.testing.assert_allclose(found, [[logp]], atol=1e-6)
    # the ratio is 1 where both sides agree
    ratio = gpo.apply(objective.ratio.token(), found, old_logp=found)
    assert float(ratio[0, 0]) == 1.0


def test_t14_expected_gradients():
    """Estimators over all three tokens of a softmax, weighed by their probability."""
    theta, other = jnp.asarray([0.3, -0.2, 0.5]), jnp.asarray([0.0, 0.4, -0.1])
    ref = jax.nn.log_softmax(other)
    true = [0.02244, -0.17942, 0.15698]

    def expected(estimator):
        penalty = gpo.chain(
            gpo.stateless(lambda x, b: 0 * x), regulariser.kl(1.0, estimator)
        )

        def loss(theta):
            logp = jax.nn.log_softmax(theta)
            p = jax.lax.stop_gradient(jnp.exp(logp))
            recipe = Recipe(weight=gpo.stateless(lambda w, b: w * p[:, None]),
                            objective=penalty)  # fmt: skip
            return gpo.loss(
                recipe, logp[:, None], ref_logp=ref[:, None], advantage=[0.0] * 3
            )[0]

        return jax.value_and_grad(loss)(theta)

    value, grad = expected(regulariser.k1)
    np.testing.assert_allclose(value, 0.119788, atol=1e-6)
    np.testing.assert_allclose(grad, [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(expected(regulariser.k2)[1], true, atol=1e-5)
    value, grad = expected(regulariser.k3_ratio)
    np.testing.assert_allclose(value, 0.119788, atol=1e-6)
    np.testing.assert_allclose(grad, true, atol=1e-5)
    value, grad = expected(regulariser.k3)
    np.testing.assert_allclose(value, 0.119788, atol=1e-6)
    np.testing.assert_allclose(grad, [0.059208, -0.224725, 0.165516], atol=1e-6)
    forward = jax.grad(lambda t: jnp.sum(
        jnp.exp(ref) * (ref - jax.nn.log_softmax(t))))(theta)  # fmt: skip
    np.testing.assert_allclose(grad, forward, atol=1e-6)


@pytest.mark.parametrize("row", table.RECIPES, ids=lambda r: r.name)
def test_t16_singletons_are_never_nan(row):
    reward = [[3.0, 1.0]] if "gdpo" in row.name else [3.0]
    columns = {"group": [0], "context": [1], "length": [1], "ref_logp": [[-1.0]],
               "old_entropy": [[0.5]], "entropy": [[0.5]], "prompt": [0]}  # fmt: skip
    recipe = row.make()._replace(auxiliary=(), buffer=gpo.identity())
    value, grad = jax.value_and_grad(
        lambda x: gpo.loss(recipe, x, reward=jnp.asarray(reward), **columns)[0]
    )(jnp.asarray([[-1.0]]))
    assert float(value) == 0
    assert float(grad[0, 0]) == 0


def test_t20_whitening_counts_rows_not_tokens():
    """The same advantages whatever the lengths of the answers are."""
    r = jnp.asarray([[1.0, 10], [0, 0], [1, 0], [0, 10]])
    mask = jnp.asarray([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]], bool)
    batch = gpo.Batch.of(reward=r, group=jnp.zeros(4, jnp.int32), mask=mask)
    recipe = recipes.gdpo(eps=0.0)
    states = gpo.recipe.init_states(recipe, reward=r, advantage=r[:, 0], select=batch)
    found, _ = gpo.credit(recipe, states, batch, None)
    # with ddof 1 twice: norm then sum gives (x, -x, 0, 0), whitened by sqrt(2 x^2 / 3)
    np.testing.assert_allclose(
        found.advantage, [1.5**0.5, -(1.5**0.5), 0, 0], atol=1e-6
    )


def test_gdpo_skips_what_does_not_apply():
    """[70]: missing rewards vote nowhere; a row without any is out, with advantage 0."""
    rewards = [[1.0, 1], [1, 0], [0, 0], [NAN, 1], [NAN, NAN], [0, 1], [1, 0]]
    rewards = jnp.asarray(rewards)
    ids = jnp.asarray([0, 0, 0, 1, 1, 1, 1], jnp.int32)

    def credited(rows):
        batch = gpo.Batch.of(reward=rewards[rows], group=ids[rows])
        recipe = recipes.gdpo()
        return gpo.credit(recipe, gpo.recipe.init_states(
            recipe, reward=batch.reward, advantage=batch.reward[:, 0], select=batch
        ), batch, None)[0]  # fmt: skip

    every, without = jnp.arange(7), jnp.asarray([0, 1, 2, 3, 5, 6])
    found = credited(every)
    assert found.live.tolist() == [True] * 4 + [False] + [True] * 2
    assert float(found.advantage[4]) == 0
    np.testing.assert_allclose(
        found.advantage[without], credited(without).advantage, atol=1e-6
    )
    # row 3 has its second reward only: (1 - 2/3) / (std1 + eps), by the members (1, 1, 0)
    half = gpo.apply(advantage.zscore(), [1.0, 1.0, 0.0], group=[0] * 3)
    summed = gpo.apply(
        gpo.chain(gpo.per_column(advantage.zscore()), gpo.reward.total()),
        rewards, group=ids,
    )  # fmt: skip
    np.testing.assert_allclose(summed[3], half[0], rtol=1e-6)


def test_t21_pass_at_k():
    one_of_four = np.array([[1, 0, 0, 0]])
    for k, expected in ((1, 0.25), (2, 0.5), (4, 1.0)):
        np.testing.assert_allclose(metrics.pass_at_k(one_of_four, k), [expected])


def test_t21_entropy_bonus_has_a_gradient():
    recipe = Recipe(auxiliary=(gpo.auxiliary.entropy_bonus(0.1),))

    def loss(theta):
        logp = jax.nn.log_softmax(theta)
        entropy = -jnp.sum(jnp.exp(logp) * logp, keepdims=True)[None]
        return gpo.loss(
            recipe._replace(weight=weight.times(0.0)), logp[None, :1], entropy=entropy,
            advantage=[0.0],
        )[0]  # fmt: skip

    theta = jnp.asarray([1.0, 0.0, -1.0])
    grad = jax.grad(loss)(theta)
    p = jax.nn.softmax(theta)
    entropy = -jnp.sum(p * jnp.log(p))
    np.testing.assert_allclose(grad, 0.1 * p * (jnp.log(p) + entropy), atol=1e-6)
    assert np.all(np.abs(grad) > 1e-3)


@pytest.mark.parametrize("constant", [0.7, 0.3, 1 / 3, 1e-8, -123456.789, 0.1])
@pytest.mark.parametrize(
    "part",
    [
        advantage.center(), advantage.zscore(), advantage.zscore(ddof=0, eps=0.0),
        advantage.center(baseline=segment.leave_one_out), advantage.inter_intra(),
        advantage.empirical_bayes(),
        gpo.chain(advantage.empirical_bayes(), advantage.zscore((), ddof=0, eps=1e-6)),
        gpo.per_column(advantage.zscore()),
    ],
    ids=gpo.describe,
)  # fmt: skip
def test_equal_rewards_are_exactly_nothing(part, constant):
    """Twelve equal float32 rewards in two groups of other constants."""
    r = jnp.concatenate([jnp.full(12, constant), jnp.full(7, 0.6)]).astype(jnp.float32)
    r = jnp.stack([r, r], 1) if "per_column" in gpo.describe(part) else r
    ids = [0] * 12 + [1] * 7
    found = gpo.apply(part, r, group=ids, context=ids)
    assert np.all(np.asarray(found) == 0)
