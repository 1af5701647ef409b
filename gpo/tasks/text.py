"""Tasks in text: tokenizer helpers, and Python verifiers over decoded completions."""

import collections
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import experimental
from jaxtyping import Array, Float

from gpo import checks
from gpo.batch import Batch
from gpo.tasks import pool

# JAX copies a larger argument of a callback (100 kB) on its thread pool, all of whose
# threads may be waiting for this very callback: with several CPU devices that deadlocks
_CHUNK = 16_384  # int32 elements, 64 kB


def encode(tokenizer, text: str) -> list[int]:
    """Token ids of a text in which special tokens are parsed and none is added.

    Reference: library word.
    """
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def decode(tokenizer) -> Callable[[Sequence[int]], str]:
    """The function that turns token ids into text, without special tokens.

    Reference: library word.
    """

    def to_text(ids: Sequence[int]) -> str:
        return tokenizer.decode(
            [int(i) for i in ids],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )

    return to_text


def chat_prompt(
    tokenizer, messages: str | Sequence[Mapping[str, str]], system: str | None = None
) -> list[int]:
    """Token ids of a conversation up to where the assistant's turn begins.

    Args:
      tokenizer: with a chat template.
      messages: the user's message, or a list of ``{"role": ..., "content": ...}``.
      system: a system message to put first.
    Returns:
      Token ids by the tokenizer's own chat template.
    Raises:
      ValueError: the tokenizer has no chat template.
    Reference: library word.
    """
    checks.require(
        getattr(tokenizer, "chat_template", None) is not None,
        "this tokenizer has no chat template: set tokenizer.chat_template, or encode "
        "prompts yourself with gpo.tasks.text.encode",
    )
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True
    )
    return encode(tokenizer, text)


def stops(tokenizer, *more: str) -> tuple[int, ...]:
    """Ids of the tokens that end a turn: the tokenizer's EOS and the usual turn ends.

    Args:
      tokenizer: any; of ``<|im_end|>``, ``<|eot_id|>`` and ``<|endoftext|>`` those
        that it has as special tokens count as well.
      *more: further token texts.
    Returns:
      Distinct ids, the tokenizer's EOS first.
    Raises:
      ValueError: no such token is known, or one of ``more`` is not in the vocabulary.
    Reference: library word.
    """
    vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
    special |= {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
    for token in more:
        checks.require(token in vocabulary, f"the tokenizer has no token {token!r}")
    usual = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>")
    names = [tokenizer.eos_token, *(t for t in usual if t in special), *more]
    found = tuple(dict.fromkeys(vocabulary[t] for t in names if t in vocabulary))
    checks.require(
        len(found) > 0,
        "this tokenizer has no EOS token, so that no rollout could end: set "
        "tokenizer.eos_token, or name a token: stops(tokenizer, '</s>')",
    )
    return found


def digits(tokenizer) -> tuple[int, ...]:
    """Ids of all tokens whose text starts with a decimal digit, for `base.leading`.

    Reference: library word.
    """
    vocabulary = tokenizer.get_vocab().items()
    return tuple(sorted(i for token, i in vocabulary if token[:1] in {*"0123456789"}))


class Failure(NamedTuple):
    """Why a row was not scored: ``raised``, ``non-finite``, ``timeout``, ``died`` or
    ``start``; the message; the completion; the item's index."""

    kind: str
    message: str
    text: str
    item: int


class Errors:
    """Failures of a verifier since the run began: counts by kind, and the last few.

    ``counts`` is a `collections.Counter`, ``recent`` a deque of `Failure`.
    """

    def __init__(self, keep: int = 8):
        self.counts: collections.Counter[str] = collections.Counter()
        self.recent: collections.deque[Failure] = collections.deque(maxlen=keep)

    def add(self, failure: Failure) -> None:
        """Counts a failure, and keeps it while it is one of the last."""
        self.counts[failure.kind] += 1
        self.recent.append(failure)

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.counts.items()))
        lines = [
            f"  {f.kind}: {f.message} (item {f.item}, completion {f.text[-200:]!r})"
            for f in self.recent
        ]
        return "\n".join([f"rows not scored: {counts or 'none'}", *lines])


class Host:
    """The score that `host` makes: call it with a Batch, inside or outside jit.

    ``errors`` says what went wrong so far, ``items`` are the verifier's items, and
    ``close()`` ends the worker processes before the interpreter does.
    """

    def __init__(self, fn, items, decode, workers, timeout, rewards):
        self.items, self.errors = items, Errors()
        self._fn, self._decode, self._timeout = fn, decode, timeout
        self._rewards = rewards
        self._pool = pool.Pool(fn, workers, timeout) if workers else None
        self._pickled = [_pickle(i, x) for i, x in enumerate(items) if workers]

    def __call__(self, batch: Batch) -> Float[Array, "..."]:
        tokens, length = batch["tokens"], batch["length"]
        live = jnp.ones_like(length) if batch.live is None else batch.live
        columns = [tokens.ravel(), length, batch["item"], live]
        flat = jnp.concatenate([c.astype(jnp.int32) for c in columns])
        chunks = [flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK)]
        several = () if self._rewards is None else (self._rewards,)
        shape = jax.ShapeDtypeStruct((tokens.shape[0], *several), jnp.float32)
        return experimental.io_callback(self._score, shape, tokens.shape, *chunks)

    def _score(self, shape, *chunks) -> np.ndarray:
        rows, width = (int(n) for n in shape)
        flat = np.concatenate([np.asarray(c) for c in chunks])
        tokens, rest = flat[: rows * width].reshape(rows, width), flat[rows * width :]
        length, item, live = rest.reshape(3, rows)
        scored = np.flatnonzero(live)
        texts = [self._decode(tokens[row, : length[row]].tolist()) for row in scored]
        outcomes = self._evaluate(texts, item[scored].tolist())
        several = () if self._rewards is None else (self._rewards,)
        out = np.full((rows, *several), np.nan, np.float32)
        for row, text, (kind, value) in zip(scored, texts, outcomes, strict=True):
            if kind is None and np.shape(value) != several:
                kind, value = "raised", f"returned {value}, expected shape {several}"
            if kind is None:
                out[row] = value
            else:
                self.errors.add(Failure(kind, value, text, int(item[row])))
        return out

    def _evaluate(self, texts, item):
        if self._pool is not None:
            pairs = zip(texts, item, strict=True)
            return self._pool.run([(text, self._pickled[i]) for text, i in pairs])
        return [
            pool.in_thread(self._fn, text, self.items[i], self._timeout)
            for text, i in zip(texts, item, strict=True)
        ]

    def close(self) -> None:
        """Ends the worker processes; the next batch starts new ones."""
        if self._pool is not None:
            self._pool.close()


def _pickle(index: int, item) -> bytes:
    try:
        return pickle.dumps(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"item {index} of the verifier cannot be pickled, received {item!r}: use "
            "plain data (strings, numbers, lists, dicts), or pass workers=0"
        ) from error


def host(
    fn: Callable[[str, Any], float | Sequence[float]],
    items: Sequence[Any],
    decode: Callable[[Sequence[int]], str],
    *,
    workers: int = 2,
    timeout: float = 10.0,
    rewards: int | None = None,
) -> Host:
    """A score from a Python verifier over text, as a callback inside the jitted program.

    ``r_b = fn(decode(tokens[b, :length[b]]), items[item[b]])``

    The verifier may be slow, raise, return NaN, exit or hang: then the row gets NaN,
    which excludes it from all statistics, and `Host.errors` counts it. It runs in
    worker processes, which are started when the first batch arrives, killed at the time
    limit (with whatever they started) and replaced. What it prints goes to stderr.

    Args:
      fn: ``fn(completion, item) -> reward``, at the top level of a module, or a
        `functools.partial` of such a function or a picklable object.
      items: what the verifier knows of each row of the data set. The batch's column
        ``item`` (B,) indexes it: give the task ``columns={"item": np.arange(N)}``,
        which keeps items and prompts together when the task is split.
      decode: token ids -> text.
      workers: processes. 0: threads inside this process; nothing is started and nothing
        need be picklable, but a verifier that hangs cannot be interrupted then: its row
        is given up at the time limit while it goes on running.
      timeout: seconds for one call; the import of the verifier does not count.
      rewards: None: the verifier returns a number; K: a list of K numbers.
    Returns:
      Batch -> (B,) or (B, K) float32, with ``errors``, ``items`` and ``close()``. Reads
      ``tokens, length, live, item``; rows that are not live are not scored.
    Raises:
      ValueError: the verifier or an item cannot be sent to a worker.
    Example:
      >>> score = host(str.__eq__, ["4"], lambda ids: "".join(map(str, ids)), workers=0)
      >>> batch = Batch.of(tokens=jnp.array([[4], [5]]), length=jnp.array([1, 1]),
      ...                  item=jnp.array([0, 0]))
      >>> jax.jit(score)(batch).tolist()
      [1.0, 0.0]

    Reference: library word.
    Deviations: workers are plain subprocesses, not `multiprocessing`'s, which would
      import this process's main module, and JAX with it, into each of them. POSIX only;
      elsewhere use ``workers=0``. With several CPU devices in one process XLA ends a
      program in which a device waits for more than 40 s for another: keep
      ``B * seconds / workers`` below that, or raise
      ``--xla_cpu_collective_call_terminate_timeout_seconds``.
    """
    checks.bounded("workers", workers, low=0)
    checks.require(timeout > 0, f"timeout must be positive, received {timeout}")
    return Host(fn, items, decode, workers, timeout, rewards)
