"""Countdown: reach a target with given numbers and + - * /, checked on the device.

A completion is an expression in ordinary notation, followed by the end token:

    expression := term (("+" | "-") term)*
    term       := factor (("*" | "/") factor)*
    factor     := number | "(" expression ")"

with the usual precedence, from left to right, in exact rational arithmetic; a number has
no leading zero, and there is no sign in front of a factor. Every literal must be one of
the given numbers, each used at most once (``every=False``) or exactly once.
"""

import fractions
import functools
import operator
import random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from gpo import checks
from gpo.batch import Batch
from gpo.tasks import base

ALPHABET = "0123456789+-*/(),:=."
"""Symbols by token id; the last one is the end."""
_PLUS, _MINUS, _TIMES, _OVER, _OPEN, _CLOSE = range(10, 16)
_END = len(ALPHABET) - 1
_NOTHING = -1
_ARITHMETIC = dict(
    zip(
        "+-*/",
        (operator.add, operator.sub, operator.mul, operator.truediv),
        strict=True,
    )
)
_LONG = 10**8  # literals from here on are no given number; keeps them below 2**31


class _Frame(NamedTuple):
    """An expression in parentheses so far: ``total + term``, and whether the next
    factor divides; totals and terms are fractions p / q with q > 0."""

    total_p: Any
    total_q: Any
    term_p: Any
    term_q: Any
    divide: Any


class _State(NamedTuple):
    """What the parser knows: open frames, the literal being read, numbers used."""

    frame: _Frame
    stack: _Frame  # (D,)
    depth: Any
    literal: Any
    reading: Any  # inside a literal
    expect: Any  # a factor must come next
    used: Any  # (K,)
    valid: Any
    ended: Any


def _fresh() -> _Frame:
    return _Frame(*(jnp.int32(v) for v in (0, 1, 1, 1)), divide=jnp.array(False))


def _choose(condition, a, b):
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def _value(frame: _Frame):
    """The frame as one fraction: ``total + term``."""
    p = frame.total_p * frame.term_q + frame.term_p * frame.total_q
    return p, frame.total_q * frame.term_q


def _apply(frame: _Frame, p, q):
    """The frame after the factor p / q, and whether nothing was divided by zero."""
    p, q = jnp.where(frame.divide, q, p), jnp.where(frame.divide, p, q)
    sign = jnp.where(q < 0, -1, 1)
    frame = frame._replace(
        term_p=frame.term_p * p * sign,
        term_q=frame.term_q * q * sign,
        divide=jnp.zeros_like(frame.divide),
    )
    return frame, q != 0


def _digit(s: _State, digit) -> _State:
    longer = jnp.minimum(s.literal, _LONG) * 10 + digit
    return s._replace(
        literal=jnp.where(s.reading, longer, digit),
        reading=jnp.ones_like(s.reading),
        expect=jnp.zeros_like(s.expect),
        valid=s.valid & jnp.where(s.reading, s.literal != 0, s.expect),
    )


def _finish_literal(s: _State, numbers) -> _State:
    free = (numbers == s.literal) & ~s.used
    frame, finite = _apply(s.frame, s.literal, jnp.int32(1))
    done = s._replace(
        frame=frame,
        reading=jnp.zeros_like(s.reading),
        used=s.used | (free & (jnp.cumsum(free) == 1)),
        valid=s.valid & free.any() & finite,
    )
    return _choose(s.reading, done, s)


def _operator(s: _State, token) -> _State:
    p, q = _value(s.frame)
    sign = jnp.where(token == _MINUS, -1, 1).astype(jnp.int32)
    total = _fresh()._replace(total_p=p, total_q=q, term_p=sign)
    product = s.frame._replace(divide=token == _OVER)
    return s._replace(
        frame=_choose((token == _PLUS) | (token == _MINUS), total, product),
        expect=jnp.ones_like(s.expect),
        valid=s.valid & ~s.expect,
    )


def _open(s: _State) -> _State:
    here = jnp.arange(s.stack.divide.shape[0]) == s.depth
    stack = jax.tree.map(lambda old, new: jnp.where(here, new, old), s.stack, s.frame)
    valid = s.valid & s.expect
    return s._replace(frame=_fresh(), stack=stack, depth=s.depth + 1, valid=valid)


def _close(s: _State) -> _State:
    outer = jax.tree.map(lambda x: x[jnp.maximum(s.depth - 1, 0)], s.stack)
    frame, finite = _apply(outer, *_value(s.frame))
    valid = s.valid & ~s.expect & (s.depth > 0) & finite
    return s._replace(frame=frame, depth=s.depth - 1, valid=valid)


def _end(s: _State) -> _State:
    valid = s.valid & ~s.expect & (s.depth == 0)
    return s._replace(valid=valid, ended=jnp.ones_like(s.ended))


def _read(numbers, s: _State, token):
    """One step of the parser."""
    begun = s._replace(valid=s.valid & ~s.ended)
    after = _finish_literal(begun, numbers)
    new = after._replace(valid=jnp.zeros_like(s.valid))
    new = _choose((token >= _PLUS) & (token <= _OVER), _operator(after, token), new)
    new = _choose(token == _OPEN, _open(after), new)
    new = _choose(token == _CLOSE, _close(after), new)
    new = _choose(token == _END, _end(after), new)
    new = _choose((token >= 0) & (token < 10), _digit(begun, token), new)
    return _choose(token == _NOTHING, s, new), None


def _parse(tokens, numbers) -> _State:
    """Reads one row (T,); deeper nesting than T/2 cannot be closed in T tokens."""
    deep = tokens.shape[0] // 2 + 1
    yes, no, zero = jnp.array(True), jnp.array(False), jnp.int32(0)
    stack = jax.tree.map(lambda x: jnp.broadcast_to(x, (deep,)), _fresh())
    used = jnp.zeros(numbers.shape, bool)
    start = _State(_fresh(), stack, zero, zero, no, yes, used, yes, no)
    return jax.lax.scan(functools.partial(_read, numbers), start, tokens)[0]


def check(
    batch: Batch, *, every: bool = True
) -> tuple[Bool[Array, " B"], Bool[Array, " B"]]:
    """Parses the completions of a batch on the device.

    Args:
      batch: with ``tokens`` (B, T), ``length``, and the columns ``numbers`` (B, K) and
        ``target`` (B,).
      every: each number must be used exactly once; False: at most once.
    Returns:
      ``(allowed, right)``: the completion is an expression, ended, with allowed
      numbers; and its value is the target.
    Reference: library word; the game is that of the television programme.
    """
    tokens, length = batch["tokens"], batch["length"]
    counts = jnp.arange(tokens.shape[1])[None] < length[:, None]
    known = (tokens >= 0) & (tokens <= _END)
    # an id beyond the alphabet is a wrong symbol, never "nothing"
    tokens = jnp.where(counts, jnp.where(known, tokens, _END - 1), _NOTHING)
    s = jax.vmap(_parse)(tokens, batch["numbers"])
    allowed = s.valid & s.ended & (s.used.all(-1) | (not every))
    p, q = _value(s.frame)
    q = jnp.where(q == 0, 1, q)
    return allowed, allowed & (p % q == 0) & (p // q == batch["target"])


def solved(every: bool = True) -> base.Score:
    """Scores 1 for an allowed expression that equals the target, else 0.

    Reference: library word.
    """
    return lambda batch: check(batch, every=every)[1].astype(jnp.float32)


def well_formed(every: bool = True) -> base.Score:
    """Scores 1 for an allowed expression, whatever its value, else 0: a format reward.

    Reference: library word.
    """
    return lambda batch: check(batch, every=every)[0].astype(jnp.float32)


def encode(text: str) -> list[int]:
    """Token ids of a text over `ALPHABET`.

    Example:
      >>> encode("3+7.")
      [3, 10, 7, 19]

    Reference: library word.
    """
    return [ALPHABET.index(symbol) for symbol in text]


def decode(ids) -> str:
    """Text of token ids, without the end token.

    Reference: library word.
    """
    return "".join(ALPHABET[i] for i in ids if i != _END)


def countdown(
    n: int,
    *,
    numbers: int = 4,
    low: int = 1,
    high: int = 9,
    target: tuple[int, int] = (1, 99),
    every: bool = True,
    seed: int = 0,
    score: base.Score | None = None,
) -> base.Task:
    """Countdown puzzles, each with a known solution, scored on the device.

    The prompt of numbers 3, 7, 2 and target 20 is ``3,7,2:20=``, a right completion
    ``(3+7)*2.``; `ALPHABET` lists the 20 token ids.

    Args:
      n: puzzles, all distinct (as sets of numbers with a target).
      numbers: K, how many numbers a puzzle gives.
      low, high: the numbers are drawn uniformly from [low, high].
      target: targets lie in this closed interval.
      every: each number must be used exactly once; False: at most once.
      seed: of the draw.
      score: Batch -> (B,) or (B, K); default `solved`. For two rewards:
        ``base.stack(solved(), well_formed())``.
    Returns:
      A Task with the columns ``numbers`` (N, K), ``target`` (N,), and ``solution``
      (N, A) with ``solution_length`` (N,), for `base.demonstrations`.
    Raises:
      ValueError: intermediate results of these numbers may exceed 32 bits, or there are
        not enough such puzzles.
    Reference: library word; as a task for language models: TinyZero, Pan et al., 2025
      (which uses every number exactly once).
    """
    checks.bounded("low", low, low=1, high=high)
    # p and q of any expression over k numbers are at most 2^(k-1) times their product
    largest = 2 ** (numbers - 1) * high**numbers
    checks.require(
        numbers >= 1 and largest < 2**31 and high < _LONG,
        f"{numbers} numbers up to {high} may need fractions of {largest}, beyond 32 "
        "bits: take fewer or smaller numbers (4 up to 127, 5 up to 42, 6 up to 20)",
    )
    rng = random.Random(seed)
    puzzles: dict[Any, tuple[list[int], int, str]] = {}
    for _ in range(1000 * n):
        given = [rng.randint(low, high) for _ in range(numbers)]
        value, solution = _expression(rng, given, every)
        if value.denominator == 1 and target[0] <= value <= target[1]:
            puzzles.setdefault((*sorted(given), value), (given, int(value), solution))
        if len(puzzles) == n:
            break
    checks.require(
        0 < len(puzzles) == n,
        f"found {len(puzzles)} distinct puzzles, asked for n={n}: ask for fewer, or "
        "widen low, high, numbers or target",
    )
    return _task([*puzzles.values()], solved(every) if score is None else score)


def _task(puzzles: list[tuple[list[int], int, str]], score: base.Score) -> base.Task:
    given, target, solution = zip(*puzzles, strict=True)
    texts = [f"{','.join(map(str, g))}:{t}=" for g, t, _ in puzzles]
    ids, length = base.pad([encode(s) for s in solution])
    return base.make(
        [encode(text) for text in texts],
        score,
        stop=(_END,),
        decode=decode,
        columns={
            "numbers": np.array(given, np.int32),
            "target": np.array(target, np.int32),
            "solution": ids,
            "solution_length": length,
        },
    )


def _expression(
    rng: random.Random, given: list[int], every: bool
) -> tuple[fractions.Fraction, str]:
    """A random expression over the given numbers, or over some of them."""
    size = len(given) if every else rng.randint(1, len(given))
    parts = [(fractions.Fraction(v), str(v), 3) for v in rng.sample(given, size)]
    while len(parts) > 1:
        a, b = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        parts.append(_join(a, b, rng.choice("+-*/")))
    return parts[0][0], parts[0][1]


def _join(a, b, sign: str):
    """Two parts (value, text, binding strength) joined, with few parentheses."""
    sign = "+" if sign == "/" and b[0] == 0 else sign
    value = _ARITHMETIC[sign](a[0], b[0])
    strength = 1 if sign in "+-" else 2
    left = a[1] if a[2] >= strength else f"({a[1]})"
    right = b[1] if b[2] > strength else f"({b[1]})"
    return value, f"{left}{sign}{right}", strength
