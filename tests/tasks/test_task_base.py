"""Task records: checks, split, fingerprint, and scores on token ids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo import Batch
from gpo.tasks import arithmetic, base

STOP = (10, 11)
DIGITS = range(10)


def task(n=5, **options):
    prompts = [[i, *range(i)] for i in range(n)]
    answer, length = base.pad([[i, 9][: 1 + i % 2] for i in range(n)])
    columns = {"answer": answer, "answer_length": length}
    return base.make(
        prompts, base.exact(STOP), stop=STOP, decode=str, columns=columns, **options
    )


def test_make_pads():
    made = task(3)
    assert made.prompts.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 1]]
    assert made.length.tolist() == [1, 2, 3]
    assert made.prompts.dtype == made.length.dtype == np.int32
    assert made.stop == STOP and made.correct == 1.0


def test_make_rejects_bad_data():
    rows = {"stop": STOP, "decode": str}
    with pytest.raises(ValueError, match="empty data set"):
        base.make([], base.exact(STOP), **rows)
    with pytest.raises(ValueError, match=r"prompt \[1\] has no tokens"):
        base.make([[1], []], base.exact(STOP), **rows)
    with pytest.raises(
        ValueError, match="has 4 tokens.*limit of 3.*raise the limit to 5"
    ):
        task(max_length=3)
    with pytest.raises(ValueError, match="stop token"):
        base.make([[1]], base.exact(STOP), stop=(), decode=str)
    with pytest.raises(ValueError, match="'answer' must have one row a prompt"):
        base.make([[1]], base.exact(STOP), columns={"answer": [1, 2]}, **rows)


def test_split_is_disjoint_and_repeatable():
    whole = task(5)
    train, held = base.split(whole, 2, seed=3)
    assert sorted([*train.length, *held.length]) == [1, 2, 3, 4, 5]
    assert np.array_equal(base.split(whole, 2, seed=3)[1].prompts, held.prompts)
    for part in (train, held):
        # columns stay with their prompts
        assert (part.columns["answer"][:, 0] == part.prompts[:, 0]).all()
    for wrong in (0, 5):
        with pytest.raises(ValueError, match=r"n_held_out must lie in \[1, 4\]"):
            base.split(whole, wrong)


def test_fingerprint_tells_data_apart():
    first = base.fingerprint(task())
    assert first == base.fingerprint(task()) and len(first) == 64
    changed = task()
    changed.columns["answer"][0, 0] = 7
    others = [changed, task(4), task()._replace(stop=(10,)), base.take(task(), [1, 0])]
    assert len({first, *map(base.fingerprint, others)}) == 5


def test_demonstrations_score_one():
    made = task(4)
    tokens, length = base.demonstrations(made)
    assert tokens.tolist() == [[0, 10, 0], [1, 9, 10], [2, 10, 0], [3, 9, 10]]
    batch = Batch.of(tokens=jnp.asarray(tokens), length=jnp.asarray(length))
    columns = {k: jnp.asarray(v) for k, v in made.columns.items()}
    assert made.score(batch.replace(**columns)).tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="solution_length"):
        base.demonstrations(made, "solution")


#        tokens, length, exact, leading; the answer is 4, 2
CASES = [
    ([4, 2, 10, 0], 3, 1, 1),
    ([4, 2, 11, 0], 3, 1, 1),  # any stop token
    ([4, 2, 12, 3], 4, 0, 1),  # further text after the number
    ([4, 2, 10, 3], 4, 0, 1),
    ([4, 2, 5, 10], 4, 0, 0),  # 425
    ([4, 2, 10, 0], 2, 0, 1),  # cut off right after the number
    ([4, 2, 5, 5], 2, 0, 1),  # what stands beyond the length does not count
    ([4, 2, 10, 0], 1, 0, 0),  # the right digits stand beyond the length
    ([4, 10, 2, 2], 2, 0, 0),
    ([0, 4, 2, 10], 4, 0, 0),
    ([4, 2, 0, 0], 0, 0, 0),
]


@pytest.mark.parametrize("width", [2, 5])
def test_exact_and_leading(width):
    """The answer column is padded with zeros, which are digits as well."""
    answer = np.zeros((len(CASES), width), np.int32)
    answer[:, :2] = 4, 2
    batch = Batch.of(
        tokens=jnp.array([c[0] for c in CASES], jnp.int32),
        length=jnp.array([c[1] for c in CASES]),
        answer=jnp.asarray(answer),
        answer_length=jnp.full(len(CASES), 2),
    )
    both = jax.jit(base.stack(base.exact(STOP), base.leading(DIGITS)))(batch)
    assert both.dtype == jnp.float32
    assert both.tolist() == [[c[2], c[3]] for c in CASES]


def test_answers_longer_than_completions():
    batch = Batch.of(
        tokens=jnp.array([[4], [4]]),
        length=jnp.array([1, 1]),
        answer=jnp.array([[4, 2], [4, 0]]),
        answer_length=jnp.array([2, 1]),
    )
    assert base.exact(STOP)(batch).tolist() == [0, 0]
    assert base.leading(DIGITS)(batch).tolist() == [0, 1]
    assert arithmetic.digit_share(batch).tolist() == [0.5, 1]


def test_first_number():
    assert base.first_number(" 007, 8") == "7"
    assert base.first_number("= 0") == "0"
    assert base.first_number("none") is None
