"""Countdown: the parser on the device against Python's own parser and fractions."""

import ast
import collections
import fractions
import functools
import operator
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo import Batch
from gpo.tasks import base, countdown

WIDTH = 16
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@functools.cache
def compiled(every):
    return jax.jit(functools.partial(countdown.check, every=every))


def check(texts, numbers, targets, every=True, tail="."):
    ids = [countdown.encode(t + tail)[:WIDTH] for t in texts]
    tokens, length = base.pad(ids, WIDTH)
    batch = Batch.of(
        tokens=jnp.asarray(tokens),
        length=jnp.asarray(length),
        numbers=jnp.asarray(numbers, jnp.int32),
        target=jnp.asarray(targets, jnp.int32),
    )
    return [np.asarray(x) for x in compiled(every)(batch)]


def reference(text, numbers, target, every):
    """(allowed, right) by Python's grammar, literals without leading zeros."""
    literals = []

    def value(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            literals.append(node.value)
            return fractions.Fraction(node.value)
        raise ValueError(node)

    try:
        result = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False, False
    used, given = collections.Counter(literals), collections.Counter(numbers)
    allowed = used == given if every else used <= given
    return allowed, allowed and result == target


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("every", [True, False])
def test_against_python(every):
    """Random strings, from noise to mutated solutions."""
    rng = random.Random(every)
    pieces = [*"0123456789+-*/()"] + ["12", "25"] * 3 + [*"+-*/()"] * 2
    texts, numbers, targets = [], [], []
    while len(texts) < 4000:
        given = [rng.choice([1, 2, 3, 7, 12, 25]) for _ in range(3)]
        result, text = countdown._expression(rng, given, every)
        if rng.random() < 0.5:  # change a symbol
            at = rng.randrange(len(text))
            text = (
                text[:at] + rng.choice(["", *pieces]) + text[at + rng.randint(0, 1) :]
            )
        if rng.random() < 0.2:
            text = "".join(rng.choices(pieces, k=rng.randint(0, 9)))
        if rng.random() < 0.2:
            text = f"({text})"
        near = int(result) if rng.random() < 0.8 else rng.randint(-9, 60)
        if len(text) < WIDTH:
            texts, numbers = [*texts, text], [*numbers, given]
            targets.append(near)
    got = check(texts, numbers, targets, every)
    want = [reference(*row, every) for row in zip(texts, numbers, targets, strict=True)]
    want = np.array(want).T
    assert 500 < want[0].sum() < 3500 and 200 < want[1].sum()
    wrong = np.flatnonzero((got[0] != want[0]) | (got[1] != want[1]))
    assert not wrong.size, [(texts[i], numbers[i], targets[i]) for i in wrong[:5]]


CASES = [
    ("(3+7)*2", 20, True, True),
    ("(3+7)/2", 5, True, True),
    ("3/2*7", 10, True, False),  # 10.5 is not 10
    ("3/(7/2)", 0, True, False),
    ("2-3-7", -8, True, True),  # from the left
    ("2-(3-7)", 6, True, True),
    ("2/(3-7)", 0, True, False),  # -1/2 is not 0
    ("2*(3)+((7))", 13, True, True),
    ("3+7", 10, False, False),  # 2 is not used
    ("3+7+2+2", 14, False, False),
    ("3+72", 75, False, False),
    ("03+7+2", 12, False, False),
    ("-3+7+2", 6, False, False),
    ("3+7*2)", 17, False, False),
    ("(3+7*2", 17, False, False),
    ("3(7)+2", 5, False, False),
    ("()3+7+2", 12, False, False),
    ("3++7+2", 12, False, False),
    ("3+7+2+", 12, False, False),
    ("3,7+2", 12, False, False),
    ("3+7+2=12", 12, False, False),
    ("", 0, False, False),
    ("3+7+4294967298", 12, False, False),  # 2 modulo 2**32
]


def test_cases():
    texts, targets, allowed, right = zip(*CASES, strict=True)
    got = check(texts, [[3, 7, 2]] * len(CASES), targets)
    assert got[0].tolist() == list(allowed)
    assert got[1].tolist() == list(right)


def test_division_by_zero_and_the_end():
    assert not check(["7/(3-3)"], [[3, 7, 3]], [0])[0].any()
    assert not check(["3+7+2"], [[3, 7, 2]], [12], tail="")[0].any()  # not ended
    assert not check(["3+7+2"], [[3, 7, 2]], [12], tail="..")[0].any()
    assert check(["3+7+2"], [[3, 7, 2]], [12], tail=".")[1].all()


def test_beyond_the_alphabet_and_the_length():
    tokens = jnp.asarray([countdown.encode("3+7.000000000000")] * 4)
    tokens = tokens.at[1, 1].set(999).at[2, 1].set(-1).at[3, 4:].set(-999)
    batch = Batch.of(
        tokens=tokens,
        length=jnp.full(4, 4),
        numbers=jnp.full((4, 2), 7).at[:, 0].set(3),
        target=jnp.full(4, 10),
    )
    assert compiled(True)(batch)[1].tolist() == [True, False, False, True]


def test_at_most_once():
    given = [[3, 7, 2]] * 3
    got = check(["7+3", "7+7", "7"], given, [10, 14, 7], every=False)
    assert got[1].tolist() == [True, False, True]


@pytest.mark.parametrize("every, numbers", [(True, 4), (False, 3)])
def test_puzzles_have_solutions(every, numbers):
    score = base.stack(countdown.solved(every), countdown.well_formed(every))
    task = countdown.countdown(60, numbers=numbers, every=every, score=score)
    tokens, length = base.demonstrations(task, "solution")
    columns = {k: jnp.asarray(v) for k, v in task.columns.items()}
    batch = Batch.of(tokens=jnp.asarray(tokens), length=jnp.asarray(length), **columns)
    assert task.score(batch).min() == 1
    wrong = task.score(batch.replace(target=batch["target"] + 1))
    assert wrong.tolist() == [[0, 1]] * 60
    shown = [task.decode(p[:n]) for p, n in zip(task.prompts, task.length, strict=True)]
    given, target = shown[0].rstrip("=").split(":")
    assert [*map(int, given.split(","))] == task.columns["numbers"][0].tolist()
    assert int(target) == task.columns["target"][0]
    keys = zip(map(tuple, np.sort(columns["numbers"], 1)), columns["target"].tolist())
    assert len({(*map(int, n), t) for n, t in keys}) == 60


def test_largest_numbers_do_not_overflow():
    """p and q reach 2**31 / 1.03 and stay exact."""
    a, b, c, d = 127, 126, 125, 124
    text = f"{a}/{b}+{c}/{d}"
    got = check([text], [[a, b, c, d]], [2])
    assert got[0].all() and not got[1].any()
    assert check([f"{a}*{b}*{c}*{d}"], [[a, b, c, d]], [a * b * c * d])[1].all()


def test_errors():
    with pytest.raises(ValueError, match="beyond 32 bits"):
        countdown.countdown(1, numbers=6, high=100)
    with pytest.raises(ValueError, match="distinct puzzles, asked for n=50"):
        countdown.countdown(50, numbers=2, high=2)
    with pytest.raises(ValueError, match="low must lie"):
        countdown.countdown(1, low=0)
