"""Golden numbers of parts that carry state, worked step by step."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpo
from gpo import allocation, behaviour, buffer, curriculum
from gpo.advantage import empirical_bayes
from gpo.allocation.knapsack import allocate, marginal_gain

KEY = jax.random.key(0)


def outcome(prompt, reward, **more):
    """A finished batch: which prompts were tried, with which reward."""
    return gpo.Batch.of(
        prompt=jnp.asarray(prompt, jnp.int32), reward=jnp.asarray(reward, jnp.float32),
        live=jnp.ones(len(reward), bool), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decay", "second", "mean"), [(1.0, (7, 11), 0.388889), (0.5, (6, 8), 0.428571)]
)
def test_mopps_posterior(decay, second, mean):
    """[187]: n = 8, s = .25, then .5; prompts that were not tried stay as they are."""
    part = curriculum.mopps(decay=decay)
    state = part.init(jnp.zeros(3))
    _, state = part.update(
        jnp.zeros(3), state, outcome([1] * 8, [1] * 2 + [0] * 6), KEY
    )
    np.testing.assert_allclose(state["a"], [1, 3, 1])
    np.testing.assert_allclose(state["b"], [1, 7, 1])
    _, state = part.update(
        jnp.zeros(3), state, outcome([1] * 8, [1] * 4 + [0] * 4), KEY
    )
    np.testing.assert_allclose((state["a"][1], state["b"][1]), second)
    a, b = float(state["a"][1]), float(state["b"][1])
    np.testing.assert_allclose(a / (a + b), mean, atol=1e-6)


def test_mopps_counts_one_rollout_once():
    """The released update sets a = 8 when a prompt has one rollout."""
    part = curriculum.mopps()
    batch = outcome([0], [1.0])
    _, state = part.update(jnp.zeros(2), part.init(jnp.zeros(2)), batch, KEY)
    np.testing.assert_allclose((state["a"][0], state["b"][0]), (2, 1))


def test_mopps_ignores_rows_that_are_not_live():
    part = curriculum.mopps()
    batch = outcome([0, 0], [1.0, 1.0]).replace(live=jnp.asarray([True, False]))
    _, state = part.update(jnp.zeros(2), part.init(jnp.zeros(2)), batch, KEY)
    np.testing.assert_allclose(state["a"], [2, 1])


def test_mopps_draws_the_prompts_nearest_to_the_target():
    """Posteriors of a million: what is drawn is their mean."""
    rates = np.array([0.05, 0.45, 0.9, 0.52, 0.7], np.float32)
    state = {"a": 1e6 * jnp.asarray(rates), "b": 1e6 * jnp.asarray(1 - rates)}
    part = curriculum.mopps()
    logits, _ = part.update(jnp.zeros(5), state, outcome([0], [0.0]), KEY)
    assert np.argsort(-np.asarray(logits)).tolist() == [3, 1, 4, 2, 0]
    band = curriculum.mopps(0.4, 0.6)
    firsts = set()
    for i in range(8):
        logits, _ = band.update(
            jnp.zeros(5), state, outcome([0], [0.0]), jax.random.key(i)
        )
        order = np.argsort(-np.asarray(logits)).tolist()
        assert set(order[:2]) == {1, 3}
        firsts.add(order[0])
    assert firsts == {1, 3}, "inside the band at random"


def test_mopps_pool_comes_first():
    part = curriculum.mopps(pool=4)
    found = set()
    for i in range(6):
        logits, _ = part.update(
            jnp.zeros(12), part.init(jnp.zeros(12)), outcome([0], [0.0]),
            jax.random.key(i),
        )  # fmt: skip
        assert np.unique(logits).size == 12
        found.add(tuple(sorted(np.argsort(-np.asarray(logits))[:4].tolist())))
    assert len(found) > 1


def value(n, p):
    """[149]: V(N, p) = [1 - p^N - (1 - p)^N] p (1 - p)^2."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def test_knapsack_value():
    for p, expected in ((0.05, 0.008370), (0.3, 0.110515), (0.9, 0.003094)):
        np.testing.assert_allclose(value(4, p), expected, atol=5e-7)
        for n in range(1, 6):
            step = value(n + 1, p) - value(n, p)
            np.testing.assert_allclose(marginal_gain(n, p), step, rtol=1e-9)


@pytest.mark.parametrize(
    ("total", "high", "counts", "best"),
    [(12, 10, [2, 8, 2], 0.144423), (24, 20, [12, 10, 2], 0.165208)],
)
def test_knapsack_optimum(total, high, counts, best):
    p = np.array([0.05, 0.3, 0.9])
    new = jnp.zeros(3, bool)
    found = allocate(jnp.asarray(p, jnp.float32), new, total, 2, high, 1.0)
    assert found.tolist() == counts
    np.testing.assert_allclose(value(np.asarray(found), p).sum(), best, atol=5e-7)
    uniform = value(np.full(3, total // 3), p).sum()
    assert uniform < best


solve = jax.jit(allocate, static_argnums=(2, 3, 4, 5))


def brute_force(p, total, low, high):
    """The best total value of all feasible allocations."""
    counts = itertools.product(range(low, high + 1), repeat=len(p))
    return max(
        sum(value(n, q) for n, q in zip(c, p, strict=True))
        for c in counts if sum(c) == total
    )  # fmt: skip


def test_knapsack_is_exact():
    rng = np.random.default_rng(0)
    problems = [(1, 6, 3), (1, 4, 7), (2, 5, 6), (2, 6, 13), (1, 6, 15), (2, 4, 12)]
    for i in range(200):
        low, high, total = problems[i % len(problems)]
        p = rng.choice([0.02, 0.1, 0.3, 0.5, 0.8, 0.97, 1.0], 3)
        found = np.asarray(solve(jnp.asarray(p, jnp.float32), jnp.zeros(3, bool),
                                 total, low, high, 1.0))  # fmt: skip
        assert found.sum() == total
        assert np.all((found >= low) & (found <= high))
        best = brute_force(p, total, low, high)
        np.testing.assert_allclose(value(found, p).sum(), best, rtol=1e-5, atol=1e-7)


def test_knapsack_fallbacks():
    def counts(p, total, low=2, high=16, target=1.0, new=None):
        new = np.zeros(len(p), bool) if new is None else new
        p, new = jnp.asarray(p, jnp.float32), jnp.asarray(new)
        return solve(p, new, total, low, high, target).tolist()

    # too little for the least counts: uniform, the rest to the lowest index
    assert counts([0.5, 0.1, 0.9], 5) == [2, 2, 1]
    # p = 1 and p = 0 have no value: the least, until the others are full
    assert counts([1.0, 0.0, 0.5], 12) == [2, 2, 8]
    # from the target on, the rest goes round the unsolved prompts:
    # 1 - 2 * .5^4 = .875, so four rollouts serve p = .5
    assert counts([0.5, 0.0, 0.0, 1.0], 16, target=0.8) == [4, 5, 5, 2]
    # never served: even where float32 rounds the chance of a mixed group to 1
    assert counts([0.5, 0.0], 60, high=58) == [58, 2]
    # no unsolved prompt: on by value, then ties to the lowest index
    assert counts([1.0, 1.0, 1.0], 8) == [3, 3, 2]
    # unseen prompts get B // P; what the caps leave over goes to them
    assert counts([0.0, 0.5, 0.5], 12, new=[True, False, False])[0] == 4
    assert counts([0.0, 0.5, 0.5], 18, high=4, new=[True, False, False]) == [10, 4, 4]
    # caps that hold less than the budget: uniform
    assert counts([0.5, 0.5], 12, high=4) == [6, 6]


def test_knapsack_learns_success_rates():
    part = allocation.knapsack(decay=0.0, low=2, high=10)
    state = part.init(jnp.zeros(4))
    _, state = part.update(jnp.zeros(4), state, outcome([1, 1, 3], [1.0, 0, 1]), KEY)
    np.testing.assert_allclose(state["rate"], [0, 0.5, 0, 1])
    assert state["seen"].tolist() == [False, True, False, True]
    _, state = part.update(jnp.zeros(4), state, outcome([1, 1], [1.0, 1.0]), KEY)
    np.testing.assert_allclose(state["rate"], [0, 1, 0, 1])
    smooth = allocation.knapsack(decay=0.75)
    state = {"rate": jnp.asarray([0.4, 0.0]), "seen": jnp.asarray([True, False])}
    _, state = smooth.update(jnp.zeros(2), state, outcome([0, 1], [1.0, 1.0]), KEY)
    # .75 * .4 + .25 * 1; a first visit forgets nothing
    np.testing.assert_allclose(state["rate"], [0.55, 1.0], rtol=1e-6)


def test_knapsack_reads_rows_not_candidates():
    """12 rollouts for 3 candidates, whatever else is in the batch."""
    part = allocation.knapsack(2, 10)
    rates = jnp.asarray([0.05, 0.3, 0.9, 0.0])
    state = {"rate": rates, "seen": jnp.ones(4, bool)}
    batch = gpo.Batch.of(
        candidates=jnp.asarray([0, 1, 2], jnp.int32),
        row=jnp.arange(12, dtype=jnp.int32),
    )
    shares, after = part.update(jnp.full((3,), 1 / 3), state, batch, KEY)
    np.testing.assert_allclose(shares * 12, [2, 8, 2], rtol=1e-6)
    assert allocation.largest_remainder(shares, 12).tolist() == [2, 8, 2]
    np.testing.assert_allclose(after["rate"], rates)


def test_empirical_bayes_with_known_statistics():
    """[280]: sigma2 .2, tau2 .05, mu .4 and G = 4 give S = .5."""
    many = 1e7
    state = {
        "rollouts": (many, 0.4, many), "groups": (many, 0.4, many * 0.05),
        "within": (many, 0.2, 0.0),
    }  # fmt: skip
    state = jax.tree.map(jnp.float32, state)
    part = empirical_bayes()
    r = jnp.asarray([0.0, 0, 0, 0, 1, 1, 0, 1])
    batch = gpo.Batch.of(group=jnp.asarray([0] * 4 + [1] * 4, jnp.int32))
    raw, _ = part.update(r, state, batch, None)
    np.testing.assert_allclose(
        raw, [-0.2] * 4 + [0.425, 0.425, -0.575, 0.425], atol=1e-5
    )
    final = gpo.apply(gpo.advantage.zscore((), ddof=0, eps=1e-6), raw)
    np.testing.assert_allclose(
        final, [-0.5222] * 4 + [1.2185, 1.2185, -1.5667, 1.2185], atol=1e-4
    )


def test_empirical_bayes_accumulates_over_batches():
    """Welford's accumulators after two batches are those of all rows at once."""
    rng = np.random.default_rng(0)
    part = empirical_bayes()
    batches = [rng.normal(size=(4, 3)).astype(np.float32) for _ in range(3)]
    state = part.init(jax.ShapeDtypeStruct((12,), jnp.float32))
    group = jnp.asarray(np.repeat(np.arange(4), 3), jnp.int32)
    for r in batches:
        batch = gpo.Batch.of(group=group)
        _, state = part.update(jnp.asarray(r.ravel()), state, batch, None)
    seen = np.concatenate(batches)
    count, mean, m2 = state["rollouts"]
    np.testing.assert_allclose((count, mean), (36, seen.mean()), rtol=1e-5)
    np.testing.assert_allclose(m2 / count, seen.var(), rtol=1e-4)
    count, _, m2 = state["groups"]
    np.testing.assert_allclose(m2 / count, seen.mean(1).var(), rtol=1e-4)
    np.testing.assert_allclose(state["within"][1], seen.var(1).mean(), rtol=1e-4)


def rollouts(reward, tokens, prompt=(0, 0, 1, 1)):
    rows = len(reward)
    plan = gpo.Plan(
        contexts=jnp.zeros((2, 1), jnp.int32), length=jnp.ones(2, jnp.int32),
        context=jnp.asarray([0, 0, 1, 1], jnp.int32),
        prompt=jnp.asarray(prompt, jnp.int32), group=jnp.asarray([0, 0, 1, 1], jnp.int32),
        row=jnp.arange(rows, dtype=jnp.int32), population=5,
    )  # fmt: skip
    return gpo.Batch(
        plan=plan, tokens=jnp.asarray(tokens, jnp.int32)[:, None] * jnp.ones((1, 2), jnp.int32),
        length=jnp.full((rows,), 2, jnp.int32), mask=jnp.ones((rows, 2), bool),
        live=jnp.ones(rows, bool), truncated=jnp.zeros(rows, bool),
        old_logp=jnp.zeros((rows, 2)), reward=jnp.asarray(reward),
    )  # fmt: skip


def test_reuse_fills_and_replaces_only_unsolved_groups():
    """[84]: stored when produced, put into a later group of the prompt without one."""
    part = buffer.reuse(1.0)
    first = rollouts([0.0, 1.0, 0.0, 0.0], [10, 11, 12, 13], prompt=[3, 3, 4, 4])
    state = part.init(first)
    out, state = part.update(first, state, first, None)
    assert out.reward.tolist() == first.reward.tolist()
    assert not out["reused"].any()
    assert state["has"].tolist() == [False, False, False, True, False]
    assert state["rows"]["tokens"][3].tolist() == [11, 11]
    # a later step: prompt 3 fails, prompt 4 still has nothing stored
    second = rollouts([0.0, 0.5, 0.0, 0.0], [20, 21, 22, 23], prompt=[3, 3, 4, 4])
    out, state = part.update(second, state, second, None)
    assert out["reused"].tolist() == [False, True, False, False]
    assert out["recompute"].tolist() == out["reused"].tolist()
    assert out.reward.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert out.tokens[:, 0].tolist() == [20, 11, 22, 23]
    a = gpo.apply(gpo.advantage.zscore(eps=0.0), out.reward, group=out["group"])
    np.testing.assert_allclose(a, [-(0.5**0.5), 0.5**0.5, 0, 0], atol=1e-6)
    # a solved group is left alone, and its answer becomes the stored one
    third = rollouts([0.0, 0.0, 1.0, 1.0], [30, 31, 32, 33], prompt=[0, 0, 3, 3])
    out, state = part.update(third, state, third, None)
    assert not out["reused"].any()
    assert state["rows"]["tokens"][3].tolist() == [32, 32]


def test_reuse_revives_a_dead_row_and_stores_no_dead_answer():
    part = buffer.reuse(1.0)
    batch = rollouts([1.0, 1.0, 0.0, 0.0], [1, 2, 3, 4])
    dead = batch.replace(live=jnp.asarray([False, True, True, True]))
    _, state = part.update(dead, part.init(dead), dead, None)
    assert state["rows"]["tokens"][0].tolist() == [2, 2]
    lost = rollouts([0.0, 0.0, 0.0, 0.0], [5, 6, 7, 8])
    lost = lost.replace(live=jnp.asarray([True, False, True, True]))
    out, _ = part.update(lost, state, lost, None)
    assert out.live.tolist() == [True, True, True, True]


def test_reuse_resumes_from_its_state():
    """Three updates straight, or with the state copied through the host in between."""
    part = buffer.reuse(1.0)
    steps = [rollouts(r, t) for r, t in (
        ([0.0, 1.0, 0.0, 0.0], [1, 2, 3, 4]), ([0.0, 0.0, 1.0, 0.0], [5, 6, 7, 8]),
        ([0.0, 0.0, 0.0, 0.0], [9, 10, 11, 12]))]  # fmt: skip
    straight = interrupted = part.init(steps[0])
    for batch in steps:
        out, straight = part.update(batch, straight, batch, None)
        interrupted = jax.tree.map(lambda x: jnp.asarray(np.array(x)), interrupted)
        same, interrupted = part.update(batch, interrupted, batch, None)
    assert out["reused"].tolist() == [False, True, False, True]
    jax.tree.map(np.testing.assert_array_equal, (out, straight), (same, interrupted))


def test_reuse_needs_to_know_the_population():
    with pytest.raises(ValueError, match=r"plan\.population is unknown"):
        buffer.reuse().init(gpo.Batch.of(reward=jnp.zeros(3)))


def test_delay_returns_old_parameters():
    part = behaviour.delay(2)
    state = part.init({"w": jnp.full(3, -1.0)})
    seen = []
    for step in range(5):
        old, state = part.update({"w": jnp.full(3, float(step))}, state, None, None)
        seen.append(float(old["w"][0]))
    assert seen == [-1, -1, 0, 1, 2]
    with pytest.raises(ValueError, match="steps must lie in"):
        behaviour.delay(-1)


def test_perturb_adds_noise_of_the_asked_size():
    part = behaviour.perturb(0.5)
    params = {"a": jnp.ones(4000), "b": jnp.zeros(4000, jnp.bfloat16)}
    noisy = gpo.apply(part, params, key=KEY)
    for name, x in params.items():
        noise = np.asarray(noisy[name], np.float32) - np.asarray(x, np.float32)
        np.testing.assert_allclose(noise.std(), 0.5, rtol=0.05)
        assert noisy[name].dtype == x.dtype
    assert np.corrcoef(noisy["a"] - 1, np.float32(noisy["b"]))[0, 1] < 0.1
    other = gpo.apply(part, params, key=jax.random.key(1))
    assert np.any(np.asarray(other["a"]) != np.asarray(noisy["a"]))
    with pytest.raises(ValueError, match="PRNG key"):
        gpo.apply(part, params)


def test_largest_remainder():
    share = allocation.largest_remainder
    assert share(jnp.asarray([0.5, 0.3, 0.2]), 4).tolist() == [2, 1, 1]
    # ties to the lowest index
    assert share(jnp.asarray([1.0, 1.0, 1.0]), 4).tolist() == [2, 1, 1]
    assert share(jnp.zeros(3), 6).tolist() == [2, 2, 2]
    assert share(jnp.asarray([0.0, 1.0]), 5).tolist() == [0, 5]
    rng = np.random.default_rng(0)
    whole = jax.jit(share, static_argnums=1)
    for i in range(200):
        size, total = [(2, 5), (3, 0), (3, 16), (7, 4), (7, 39)][i % 5]
        shares = rng.dirichlet(np.ones(size)).astype(np.float32)
        exact = total * shares.astype(float) / shares.astype(float).sum()
        counts = np.floor(exact)
        left = total - int(counts.sum())
        counts[np.argsort(-(exact - counts), kind="stable")[:left]] += 1
        found = np.asarray(whole(jnp.asarray(shares), total))
        assert found.tolist() == counts.tolist()


def test_largest_remainder_keeps_whole_shares():
    """Counts over their sum come back, also where float32 rounds them."""
    rng = np.random.default_rng(1)
    whole = jax.jit(allocation.largest_remainder, static_argnums=1)
    for _ in range(50):
        counts = rng.multinomial(999, rng.dirichlet(np.ones(13)))
        shares = jnp.asarray(counts / 999, jnp.float32)
        assert whole(shares, 999).tolist() == counts.tolist()


def test_best_first_is_exact_under_gumbel_top_k():
    rng = np.random.default_rng(0)
    score = jnp.asarray(rng.permutation(200), jnp.float32)
    logits = curriculum.best_first(score)
    for i in range(20):
        noise = jax.random.gumbel(jax.random.key(i), (200,))
        chosen = jax.lax.top_k(logits + noise, 7)[1]
        assert sorted(score[chosen].tolist()) == list(range(193, 200))
    ties = curriculum.best_first(jnp.asarray([1.0, 2.0, 2.0]))
    assert np.argsort(-np.asarray(ties)).tolist() == [1, 2, 0]
