"""Evaluation: against policies whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train_cases as cases

import gpo
from gpo import sampling, train
from gpo.models.decoder import Model
from gpo.tasks import base, text

VOCAB, STOP, KEY = 6, 5, jax.random.key(2)


def policy(table):
    """A model whose next token depends on the last token alone: ``table`` (V, V) of
    probabilities."""

    def extend(params, tokens, position, memory, remat=None):
        if memory.k is None:  # a prefix must hold something
            kept = jnp.zeros((1, *tokens.shape, 1, 2)).swapaxes(2, 3)
            memory = memory.replace(k=kept, v=kept, position=position)
        return jnp.log(params["table"])[tokens], memory

    config = cases.MODEL.config.replace(vocab=VOCAB)
    model = Model(lambda key: None, extend, lambda params, hidden: hidden, config)
    return model, {"table": jnp.asarray(table, jnp.float32)}


def table():
    """0 -> 3 surely; 1 -> 3 with 3/4, else 4; 2 -> 4 with 3/4, else 3; then stop."""
    rows = np.zeros((VOCAB, VOCAB))
    rows[0, 3] = 1
    rows[1, 3], rows[1, 4] = 0.75, 0.25
    rows[2, 4], rows[2, 3] = 0.75, 0.25
    rows[3:, STOP] = 1
    return rows


def task(prompts, score=None):
    """Every prompt asks for a 3."""
    return base.make(
        [[p] for p in prompts],
        base.exact((STOP,)) if score is None else score,
        stop=(STOP,),
        decode=lambda ids: "".join(str(i) for i in ids if i != STOP),
        columns={
            "answer": np.full((len(prompts), 1), 3, np.int32),
            "answer_length": np.ones(len(prompts), np.int32),
            "item": np.arange(len(prompts), dtype=np.int32),
        },
    )


MODEL, PARAMS = policy(table())


def test_a_policy_of_known_correctness():
    problems = task([0] * 10 + [1] * 40 + [2] * 40)
    found = train.evaluate(
        MODEL, PARAMS, problems, samples=16, length=2, key=KEY, batch=30
    )
    assert found.greedy is not None
    assert found.greedy.tolist() == [True] * 50 + [False] * 40
    assert found.correct.shape == (90, 16)
    assert found.correct[:10].all()
    easy, hard = found.correct[10:50].mean(), found.correct[50:].mean()
    # 640 draws each: three standard errors are .05
    assert easy == pytest.approx(0.75, abs=0.05)
    assert hard == pytest.approx(0.25, abs=0.05)
    shown = found.summary()
    assert shown["greedy"] == pytest.approx(50 / 90)
    assert shown["pass@1"] == pytest.approx(found.correct.mean())
    assert shown["avg@16"] == pytest.approx(shown["pass@1"])
    solved = found.correct.any(1)
    assert shown["pass@16"] == pytest.approx(solved.mean())
    # 1 - C(n - c, 2) / C(n, 2), by hand
    wrong = 16 - found.correct.sum(1)
    pairs = 1 - wrong * (wrong - 1) / (16 * 15)
    assert found.pass_at(2) == pytest.approx(pairs.mean())
    # the vote: correct where 3 is written more often, the first on a tie
    votes = np.array([[a == "3" for a in row] for row in found.answers])
    won = (votes.sum(1) > 8) | ((votes.sum(1) == 8) & votes[:, 0])
    assert shown["maj@16"] == pytest.approx(won.mean())
    assert shown["length"] == 2


def test_draws_depend_on_key_and_problem_only():
    problems = task([1, 2] * 7)
    make = lambda **kw: train.evaluate(
        MODEL, PARAMS, problems, length=2, **{"key": KEY, "samples": 6} | kw
    )
    whole = make(batch=32)
    for found in (make(batch=4), make(batch=14), make(batch=3)):
        np.testing.assert_array_equal(found.tokens, whole.tokens)
    fewer = make(batch=5, samples=2, greedy=False)
    np.testing.assert_array_equal(fewer.tokens, whole.tokens[:, 1:3])
    assert fewer.greedy is None
    other = make(key=jax.random.key(8))
    assert not np.array_equal(other.tokens, whole.tokens)
    assert not (whole.tokens == whole.tokens[:, 1:2]).all()


def test_one_program_for_chunks_and_calls():
    problems, traced = task([0, 1, 2, 1, 2]), []

    def score(batch):
        traced.append(batch)
        return inner(batch)

    inner, problems = problems.score, problems._replace(score=score)
    make = lambda params: train.evaluate(
        MODEL, params, problems, samples=3, length=2, batch=2, key=KEY
    )
    make(PARAMS)
    make(jax.tree.map(lambda x: x * 0.5 + 0.5 / VOCAB, PARAMS))
    assert len(traced) == 1


def test_greedy_alone_and_a_slot():
    problems = task([1, 2])
    found = train.evaluate(MODEL, PARAMS, problems, samples=0, length=2, key=KEY)
    assert found.summary() == {"greedy": 0.5, "length": 2.0}
    cold = sampling.temperature(0.05)  # .75 against .25 becomes 1 - 3e-10
    found = train.evaluate(
        MODEL, PARAMS, problems, samples=32, length=2, key=KEY, logits=cold
    )
    assert found.correct.tolist() == [[True] * 32, [False] * 32]


def judge(completion, item):
    if item == 1:
        raise RuntimeError("no verdict")
    return float(completion == "3")


def test_verifiers_on_the_host_are_not_asked_about_padding():
    problems = task([0, 0, 0, 0, 0])
    score = text.host(judge, list(range(5)), problems.decode, workers=0)
    found = train.evaluate(
        MODEL, PARAMS, problems._replace(score=score), samples=2, length=2, batch=3,
        key=KEY,
    )  # fmt: skip
    assert found.unscored == 3  # greedy and two samples of problem 1
    assert sum(score.errors.counts.values()) == 3
    assert found.correct.all(1).tolist() == [True, False, True, True, True]
    assert found.summary()["unscored"] == 3


def test_several_rewards_are_added():
    stacked = base.stack(base.exact((STOP,)), lambda b: jnp.full(b.rows, 0.5))
    problems = task([0, 2], stacked)._replace(correct=1.5)
    found = train.evaluate(MODEL, PARAMS, problems, samples=0, length=2, key=KEY)
    assert found.greedy is not None
    assert found.greedy.tolist() == [True, False]


def test_a_real_model_on_a_mesh():
    settings = {"samples": 3, "length": 3, "batch": 8, "key": KEY}
    alone = train.evaluate(cases.MODEL, cases.params(), cases.TASK, **settings)
    mesh = train.make_mesh(4, 2)
    placed = train.place(cases.params(), mesh)
    spread = train.evaluate(cases.MODEL, placed, cases.TASK, mesh=mesh, **settings)
    np.testing.assert_array_equal(alone.tokens, spread.tokens)
    assert alone.tokens.shape == (12, 4, 3)


def test_bad_requests_are_told():
    settings = {"length": 2, "key": KEY}
    with pytest.raises(ValueError, match="ask for nothing"):
        train.evaluate(MODEL, PARAMS, task([0]), samples=0, greedy=False, **settings)
    with pytest.raises(ValueError, match=r"samples must lie in \[0, 4095\]"):
        train.evaluate(MODEL, PARAMS, task([0]), samples=4096, **settings)
    found = train.evaluate(MODEL, PARAMS, task([0]), samples=2, **settings)
    with pytest.raises(ValueError, match="1 <= k <= n = 2"):
        found.pass_at(3)
    assert isinstance(gpo.metrics.avg_at_k(found.correct), np.ndarray)
