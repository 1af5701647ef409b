"""Addition: as text for a language model, and on a tiny vocabulary of its own."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpo import checks
from gpo.batch import Batch
from gpo.tasks import base, text

TEMPLATE = "<|im_start|>user\n{a}+{b}=?<|im_end|>\n<|im_start|>assistant\n{a}+{b}="


def _pairs(low: int, high: int, n: int | None, seed: int) -> np.ndarray:
    """(n, 2) distinct pairs with both numbers in [low, high), in random order."""
    size = (high - low) ** 2
    checks.require(
        n is not None or size <= 1_000_000,
        f"there are {size} pairs: pass n=..., how many of them to draw",
    )
    n = size if n is None else n
    checks.require(
        0 < n <= size, f"n must lie in [1, {size}], the number of pairs, received {n}"
    )
    drawn = np.random.default_rng(seed).choice(size, n, replace=False)
    return np.stack(np.divmod(drawn, high - low), axis=-1) + low


def addition(
    tokenizer,
    digits: int = 2,
    n: int | None = None,
    *,
    seed: int = 0,
    partial: float = 0.5,
    template: str = TEMPLATE,
    max_length: int | None = None,
) -> base.Task:
    """Sums of two numbers, asked of a language model in text.

    The reward is 1 where the first number that is written is the sum (`base.leading`),
    else ``partial`` times the share of the sum's digits that stand in their place
    (`digit_share`); only the 1 counts as correct. A rollout ends with its first token that is no digit: what comes
    after the number is neither sampled nor trained, since no reward depends on it. Pairs
    are distinct, so `base.split` gives disjoint held-out sums.

    Args:
      tokenizer: of the model; digits must be tokens that merge with nothing before
        them.
      digits: of each number; 2: from 10 to 99.
      n: pairs to draw; None: all of them, in random order.
      seed: of the draw.
      partial: credit for right digits of a wrong sum, in [0, 1); 0: all or nothing. It
        gives a signal to groups without a right answer.
      template: the prompt, with ``{a}`` and ``{b}``; special tokens are parsed and none
        is added.
      max_length: the longest prompt allowed, in tokens.
    Returns:
      A Task with the columns ``answer`` (N, A) and ``answer_length`` (N,).
    Raises:
      ValueError: ``n`` is out of range, or prompt and answer do not encode to the
        prompt's ids followed by the answer's.
    Reference: library word.
    """
    checks.bounded("digits", digits, low=1)
    checks.bounded("partial", partial, 0, 0.99)
    pairs = _pairs(10 ** (digits - 1), 10**digits, n, seed)
    prompts = [template.format(a=a, b=b) for a, b in pairs]
    answers = [str(a + b) for a, b in pairs]
    prompt_ids = _encode(tokenizer, prompts)
    answer_ids = _encode(tokenizer, answers)
    whole = _encode(tokenizer, [p + a for p, a in zip(prompts, answers, strict=True)])
    for i, ids in enumerate(whole):
        checks.require(
            ids == prompt_ids[i] + answer_ids[i],
            f"the tokenizer joins prompt and answer: {prompts[i] + answers[i]!r} encodes "
            f"to {ids}, prompt and answer to {prompt_ids[i]} and {answer_ids[i]}. Choose "
            "a template that ends where a token ends",
        )
    answer, answer_length = base.pad(answer_ids)
    digits_of = text.digits(tokenizer)
    ends = text.stops(tokenizer)
    others = set(range(len(tokenizer))) - {*digits_of, *ends}
    return base.make(
        prompt_ids,
        or_else(base.leading(digits_of), digit_share, partial),
        stop=(*ends, *sorted(others)),
        decode=text.decode(tokenizer),
        extract=base.first_number,
        columns={"answer": answer, "answer_length": answer_length},
        max_length=max_length,
    )


def _encode(tokenizer, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def alphabet(radix: int = 10) -> tuple[str, ...]:
    """Symbols of `tiny_addition` by token id: the digits, ``+``, ``=``, and the end.

    Example:
      >>> alphabet(3)
      ('0', '1', '2', '+', '=', '.')

    Reference: library word.
    """
    checks.bounded("radix", radix, low=2, high=36)
    return (*"0123456789abcdefghijklmnopqrstuvwxyz"[:radix], "+", "=", ".")


def tiny_addition(
    digits: int = 2,
    n: int | None = None,
    *,
    radix: int = 10,
    seed: int = 0,
    score: base.Score | None = None,
) -> base.Task:
    """Sums of two numbers for a model trained from scratch; scored on the device.

    Token ids: 0 to ``radix - 1`` the digits, ``radix`` plus, ``radix + 1`` equals,
    ``radix + 2`` the end, so the vocabulary has ``radix + 3`` tokens. Numbers are
    written with leading zeros, ``digits`` places for a term and one more for the sum:
    every prompt has ``2 * digits + 2`` tokens, every right completion ``digits + 2``.

    Args:
      digits: places of each term; terms run from 0 to ``radix ** digits - 1``.
      n: pairs to draw; None: all of them, in random order.
      radix: the base of the number system, 2 to 36.
      seed: of the draw.
      score: Batch -> (B,) or (B, K); default `base.exact`. For several rewards:
        ``base.stack(base.exact(stop), digit_share, right_length)``.
    Returns:
      A Task with the columns ``answer`` (N, digits + 1) and ``answer_length`` (N,).
    Raises:
      ValueError: ``n`` or ``radix`` is out of range.
    Example:
      >>> task = tiny_addition(1, radix=2)
      >>> len(task.length), int(task.length[0]), task.stop
      (4, 4, (4,))

    Reference: library word.
    """
    checks.bounded("digits", digits, low=1)
    symbols = alphabet(radix)
    plus, equals, end = radix, radix + 1, radix + 2
    pairs = _pairs(0, radix**digits, n, seed)
    first, second = (_places(pairs[:, i], digits, radix) for i in (0, 1))
    mark = np.ones((len(pairs), 1), np.int32)
    prompts = np.concatenate([first, mark * plus, second, mark * equals], axis=1)
    return base.make(
        list(prompts),
        base.exact((end,)) if score is None else score,
        stop=(end,),
        decode=lambda ids: "".join(symbols[i] for i in ids if i != end),
        columns={
            "answer": _places(pairs.sum(1), digits + 1, radix),
            "answer_length": np.full(len(pairs), digits + 1, np.int32),
        },
    )


def _places(numbers: np.ndarray, places: int, radix: int) -> np.ndarray:
    """(N, places) digits, the most significant first."""
    powers = radix ** np.arange(places)[::-1]
    return (numbers[:, None] // powers % radix).astype(np.int32)


def or_else(whole: base.Score, part: base.Score, weight: float) -> base.Score:
    """Full credit, or else some: ``r = max(whole, weight · part)``.

    Args:
      whole: a score of 0 and 1.
      part: a score in [0, 1], for rows that ``whole`` gives 0.
      weight: of it, below 1.
    Returns:
      Batch -> (B,) float32.
    Reference: library word.
    """
    return lambda batch: jnp.maximum(whole(batch), weight * part(batch))


def digit_share(batch: Batch) -> Float[Array, " B"]:
    """The share of the answer's tokens that stand in their place, a shaped reward.

    ``r = |{a < A: a < length and tokens[a] = answer[a]}| / A``; reads ``tokens, length,
    answer, answer_length``.

    Reference: library word.
    """
    answer, size = batch["answer"], batch["answer_length"]
    width = min(answer.shape[1], batch["tokens"].shape[1])
    place = jnp.arange(width)[None]
    counts = place < jnp.minimum(size, batch["length"])[:, None]
    right = (batch["tokens"][:, :width] == answer[:, :width]) & counts
    return right.sum(-1).astype(jnp.float32) / jnp.maximum(size, 1).astype(jnp.float32)


def right_length(batch: Batch) -> Float[Array, " B"]:
    """1 where the completion has as many tokens as the answer and its end, else 0.

    Reads ``length, answer_length``; whether the tokens are right does not matter.

    Reference: library word.
    """
    return (batch["length"] == batch["answer_length"] + 1).astype(jnp.float32)
