"""What a task is: prompts, a score, and how to read a completion.

Letters: N prompts in the data set, L prompt tokens, A answer tokens, B rollouts,
T continuation tokens, K rewards.
"""

import hashlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpo import checks
from gpo.batch import Batch

Score = Callable[[Batch], Any]


class Task(NamedTuple):
    """Prompts and how to score what a policy writes after them.

    =========  ==========  ===========================================================
    field      shape       meaning
    =========  ==========  ===========================================================
    prompts    (N, L) int  token ids, right-padded
    length     (N,) int    tokens of each prompt
    columns    dict        arrays (N, ...): gathered by prompt into ``batch.extras``
                           before scoring (``answer``, ``answer_length``, ``item``)
    score      function    Batch -> (B,) or (B, K) float32; NaN: not scored, and the
                           row leaves all statistics
    stop       tuple       token ids that end a rollout; the ending token is trained
    decode     function    token ids -> text, for tables and verifiers on the host
    extract    function    text of a completion -> its answer, for maj@k
    correct    float       a total reward of at least this counts as solved
    =========  ==========  ===========================================================

    Arrays are NumPy. Scores read ``plan, tokens, length, live, truncated`` and the
    columns of the batch.
    """

    prompts: Any
    length: Any
    columns: dict[str, Any]
    score: Score
    stop: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]
    extract: Callable[[str], Hashable] = str.strip
    correct: float = 1.0


def make(
    prompts: Sequence[Sequence[int]],
    score: Score,
    *,
    stop: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    extract: Callable[[str], Hashable] = str.strip,
    columns: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    correct: float = 1.0,
) -> Task:
    """A checked `Task` from lists of token ids.

    Args:
      prompts: N lists of token ids, of any lengths.
      score: Batch -> (B,) or (B, K) float32.
      stop: token ids that end a rollout, at least one.
      decode: token ids -> text.
      extract: text of a completion -> its answer, for maj@k.
      columns: arrays (N, ...) or lists of N numbers.
      max_length: the longest prompt allowed; None: no limit.
      correct: a total reward of at least this counts as solved.
    Returns:
      The task, prompts right-padded to the longest one.
    Raises:
      ValueError: no prompts, an empty prompt, a prompt longer than ``max_length``, no
        stop token, or a column with another number of rows.
    Example:
      >>> task = make([[5, 6], [7]], exact((9,)), stop=(9,), decode=str)
      >>> task.prompts.tolist(), task.length.tolist()
      ([[5, 6], [7, 0]], [2, 1])

    Reference: library word.
    """
    checks.require(
        len(prompts) > 0,
        "a task needs at least one prompt, received an empty data set: check the path, "
        "the split and the filters",
    )
    checks.require(
        len(stop) > 0,
        "a task needs a stop token, received stop=(): pass the ids that end an answer, "
        "for example gpo.tasks.text.stops(tokenizer)",
    )
    arrays = {name: np.asarray(value) for name, value in (columns or {}).items()}
    for name, value in arrays.items():
        checks.require(
            value.shape[:1] == (len(prompts),),
            f"column {name!r} must have one row a prompt ({len(prompts)}), received "
            f"shape {value.shape}",
        )
    padded, length = pad(prompts)
    _check_length(length, max_length)
    stop = tuple(int(s) for s in stop)
    return Task(padded, length, arrays, score, stop, decode, extract, correct)


def _check_length(length: np.ndarray, limit: int | None) -> None:
    empty = np.flatnonzero(length == 0)
    checks.require(
        empty.size == 0,
        f"prompt {empty[:1].tolist()} has no tokens: leave it out, or give it at least "
        "a start token",
    )
    if limit is None:
        return
    over = np.flatnonzero(length > limit)
    if over.size:
        raise ValueError(
            f"prompt {over[0]} has {length[over[0]]} tokens, more than the limit of "
            f"{limit} ({over.size} such prompts, the longest has {length.max()}): raise "
            f"the limit to {length.max()}, or leave these prompts out"
        )


def pad(rows: Sequence[Sequence[int]], width: int | None = None):
    """Right-pads lists of ids with 0.

    Args:
      rows: N lists of ints.
      width: columns of the result; default the longest row.
    Returns:
      ``(ids (N, width), length (N,))``, both int32.
    Reference: library word.
    """
    length = np.array([len(row) for row in rows], np.int32)
    ids = np.zeros((len(rows), length.max() if width is None else width), np.int32)
    for row, out in zip(rows, ids, strict=True):
        out[: len(row)] = row
    return ids, length


def take(task: Task, rows) -> Task:
    """The task with only these rows of the data set, in this order."""
    rows = np.asarray(rows)
    return task._replace(
        prompts=task.prompts[rows],
        length=task.length[rows],
        columns={name: value[rows] for name, value in task.columns.items()},
    )


def split(task: Task, n_held_out: int, seed: int = 0) -> tuple[Task, Task]:
    """Draws held-out prompts.

    Args:
      task: any task.
      n_held_out: prompts to hold out, in [1, N - 1].
      seed: of the draw; the same seed gives the same split.
    Returns:
      ``(train, held_out)``, without a common row; both keep the task's column widths.
    Raises:
      ValueError: either side would be empty.
    Example:
      >>> task = make([[1], [2], [3]], exact((9,)), stop=(9,), decode=str)
      >>> train, held_out = split(task, 1)
      >>> len(train.length), len(held_out.length)
      (2, 1)

    Reference: library word.
    """
    n = len(task.length)
    checks.require(
        0 < n_held_out < n,
        f"n_held_out must lie in [1, {n - 1}] for {n} prompts, received {n_held_out}",
    )
    order = np.random.default_rng(seed).permutation(n)
    return take(task, order[n_held_out:]), take(task, order[:n_held_out])


def fingerprint(task: Task) -> str:
    """SHA-256 of the data: prompts, columns, stop tokens, and the items of a host score.

    Two tasks with equal fingerprints ask and expect the same; a run is resumed only on
    data with the fingerprint that it started with.

    Args:
      task: any task.
    Returns:
      64 hexadecimal digits.
    Reference: library word.
    """
    arrays = {"prompts": task.prompts, "length": task.length}
    arrays |= {f"columns.{name}": value for name, value in task.columns.items()}
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        value = np.ascontiguousarray(value)
        digest.update(f"{name} {value.dtype.str} {value.shape};".encode())
        digest.update(value.tobytes())
    items = getattr(task.score, "items", ())
    digest.update(f"{task.stop} {task.correct} {[*map(repr, items)]}".encode())
    return digest.hexdigest()


def demonstrations(task: Task, column: str = "answer"):
    """Right completions for a supervised warm-up: an answer and a stop token.

    Args:
      task: a task with the columns ``<column>`` (N, A) and ``<column>_length`` (N,).
      column: which column holds the token ids.
    Returns:
      ``(tokens (N, A + 1), length (N,))`` int32, each ending in ``task.stop[0]``.
    Raises:
      ValueError: the task has no such column.
    Reference: library word.
    """
    names = [column, f"{column}_length"]
    checks.require(
        all(name in task.columns for name in names),
        f"demonstrations need the columns {names}, this task has {sorted(task.columns)}",
    )
    ids, length = (np.asarray(task.columns[name]) for name in names)
    tokens = np.pad(ids, ((0, 0), (0, 1))).astype(np.int32)
    tokens[np.arange(len(length)), length] = task.stop[0]
    return tokens, (length + 1).astype(np.int32)


def _answered(batch: Batch):
    """(B,) bool: the completion starts with the answer; and (B,) the token after it,
    -1 where the completion ends there."""
    answer, size = batch["answer"], batch["answer_length"]
    width = answer.shape[1]
    missing = max(width + 1 - batch["tokens"].shape[1], 0)
    tokens = jnp.pad(batch["tokens"], ((0, 0), (0, missing)))
    beyond = jnp.arange(width)[None] >= size[:, None]
    same = ((tokens[:, :width] == answer) | beyond).all(-1)
    following = jnp.take_along_axis(tokens, size[:, None], axis=1)[:, 0]
    following = jnp.where(batch["length"] > size, following, -1)
    return same & (batch["length"] >= size), following


def among(tokens, ids: Sequence[int]):
    """True where a token is one of ``ids``; shaped like ``tokens``."""
    return jnp.isin(tokens, jnp.asarray([*ids], tokens.dtype))


def exact(stop: Sequence[int]) -> Score:
    """Scores 1 for the answer followed by a stop token and nothing else, 0 otherwise.

    ``r = [tokens[:A] = answer and tokens[A] ∈ stop and length = A + 1]``

    Args:
      stop: the task's stop tokens.
    Returns:
      Batch -> (B,) float32; reads ``tokens, length, answer (B, A), answer_length``.
    Reference: library word.
    """

    def score(batch: Batch) -> Float[Array, " B"]:
        right, following = _answered(batch)
        ended = among(following, stop) & (batch["length"] == batch["answer_length"] + 1)
        return (right & ended).astype(jnp.float32)

    return score


def leading(digits: Sequence[int]) -> Score:
    """Scores 1 where the first number that is written is the answer, 0 otherwise.

    ``r = [tokens[:A] = answer and (length = A or tokens[A] ∉ digits)]``: what follows
    the number does not matter, and a rollout cut off right after it counts.

    Args:
      digits: ids of all tokens that would continue a number
        (`gpo.tasks.text.digits(tokenizer)`).
    Returns:
      Batch -> (B,) float32; reads ``tokens, length, answer (B, A), answer_length``.
    Reference: library word.
    """

    def score(batch: Batch) -> Float[Array, " B"]:
        right, following = _answered(batch)
        return (right & ~among(following, digits)).astype(jnp.float32)

    return score


def stack(*scores: Score) -> Score:
    """Several scores as K rewards: Batch -> (B, K), for multi-reward recipes.

    Example:
      >>> score = stack(exact((9,)), leading((0, 1)))

    Reference: library word.
    """
    return lambda batch: jnp.stack([score(batch) for score in scores], axis=-1)


def first_number(text: str) -> str | None:
    """The first run of decimal digits, without leading zeros; None where there is none.

    Example:
      >>> first_number("= 042 apples")
      '42'

    Reference: library word.
    """
    found = re.search(r"\d+", text)
    return found and (found.group().lstrip("0") or "0")
