"""Addition in text and on its own vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo import Batch
from gpo.tasks import arithmetic, base


def rollouts(task, tokens, length):
    columns = {k: jnp.asarray(v) for k, v in task.columns.items()}
    return Batch.of(tokens=jnp.asarray(tokens), length=jnp.asarray(length), **columns)


def test_text_addition(tokenizer):
    task = arithmetic.addition(tokenizer, n=50, seed=1)
    text = tokenizer.decode(task.prompts[0, : task.length[0]])
    asked = text.removeprefix("<|im_start|>user\n").split("=?")[0]
    a, b = map(int, asked.split("+"))
    assert text == arithmetic.TEMPLATE.format(a=a, b=b)
    assert 10 <= a <= 99 and 10 <= b <= 99
    size = task.columns["answer_length"][0]
    assert task.decode(task.columns["answer"][0, :size]) == str(a + b)
    assert task.stop[0] == tokenizer.eos_token_id
    digits = set(range(len(tokenizer))) - {*task.stop}
    assert {tokenizer.decode(i) for i in digits} == set("0123456789")
    assert task.extract("57 and 3") == "57"
    tokens, length = base.demonstrations(task)
    assert task.score(rollouts(task, tokens, length)).tolist() == [1] * 50
    tokens[:, 0] = task.columns["answer"][:, 1]
    right = task.columns["answer"][:, 0] == task.columns["answer"][:, 1]
    found = np.asarray(task.score(rollouts(task, tokens, length)))
    assert ((found == 1) == right).all()
    size = task.columns["answer_length"]
    share = tokens[:, :3] == task.columns["answer"][:, :3]
    share = (share & (np.arange(3)[None] < size[:, None])).sum(1) / size
    np.testing.assert_allclose(found, np.where(right, 1, share / 2), rtol=1e-6)
    strict = arithmetic.addition(tokenizer, n=50, seed=1, partial=0.0)
    found = strict.score(rollouts(strict, tokens, length))
    assert found.tolist() == right.tolist()


def test_text_addition_is_distinct_and_seeded(tokenizer):
    whole = arithmetic.addition(tokenizer, digits=1)
    assert len({tuple(p) for p in whole.prompts.tolist()}) == len(whole.length) == 81
    train, held = base.split(whole, 20)
    rows = [{tuple(p) for p in part.prompts.tolist()} for part in (train, held)]
    assert not rows[0] & rows[1]
    again, other = (arithmetic.addition(tokenizer, n=9, seed=s).prompts for s in (0, 1))
    assert np.array_equal(again, arithmetic.addition(tokenizer, n=9).prompts)
    assert not np.array_equal(again, other)


def test_text_addition_errors(tokenizer, make_tokenizer):
    with pytest.raises(ValueError, match="joins prompt and answer.*template"):
        arithmetic.addition(make_tokenizer(merges=[("=", "1")]), n=81, digits=1)
    with pytest.raises(ValueError, match=r"n must lie in \[1, 81\]"):
        arithmetic.addition(tokenizer, digits=1, n=82)
    with pytest.raises(ValueError, match="pass n="):
        arithmetic.addition(tokenizer, digits=4)
    with pytest.raises(ValueError, match="limit of 5"):
        arithmetic.addition(tokenizer, n=1, max_length=5)
    with pytest.raises(ValueError, match="EOS"):
        arithmetic.addition(make_tokenizer(eos=None, specials=()), n=1)


@pytest.mark.parametrize("digits, radix", [(1, 10), (2, 3)])
def test_tiny_addition(digits, radix):
    task = arithmetic.tiny_addition(digits, radix=radix)
    assert len(task.length) == radix ** (2 * digits)
    assert (task.length == 2 * digits + 2).all()
    for prompt, answer in zip(task.prompts, task.columns["answer"], strict=True):
        terms = task.decode(prompt).rstrip("=").split("+")
        assert sum(int(t, radix) for t in terms) == int(task.decode(answer), radix)
    tokens, length = base.demonstrations(task)
    batch = rollouts(task, tokens, length)
    assert jax.jit(task.score)(batch).min() == 1
    assert task.score(batch.replace(length=batch.length - 1)).max() == 0
    assert max(tokens.max(), task.prompts.max()) == radix + 2
    assert len(arithmetic.alphabet(radix)) == radix + 3


def test_shaped_rewards():
    score = base.stack(
        base.exact((12,)), arithmetic.digit_share, arithmetic.right_length
    )
    task = arithmetic.tiny_addition(2, n=4, score=score)
    tokens, length = base.demonstrations(task)
    tokens[1, 1] = (tokens[1, 1] + 1) % 10
    length[2:] = 4, 1
    tokens[3] = tokens[3, 0], 12, 12, 12
    right = np.array([1.0, 2 / 3, 1.0, 1 / 3], np.float32)
    expected = np.stack([[1, 0, 1, 0], right, [1, 1, 1, 0]], -1)
    np.testing.assert_allclose(task.score(rollouts(task, tokens, length)), expected)
    with pytest.raises(ValueError, match="radix"):
        arithmetic.tiny_addition(radix=40)
