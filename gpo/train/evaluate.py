"""How good a policy is on held-out prompts: greedy, pass@k, avg@k and maj@k."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpo import checks, metrics, sampling
from gpo.base import Transform, stateless
from gpo.batch import Plan
from gpo.models.decoder import Model
from gpo.rollout import decode
from gpo.tasks.base import Task
from gpo.train import hosts, sharding

# row of sample j of problem n: n * _SAMPLES + 1 + j; its sample 0 is the greedy one
_SAMPLES = 4096
_GREEDY = sampling.greedy()
_WHOLE = stateless(lambda z, batch: z)


class Evaluation(NamedTuple):
    """What a policy wrote for N problems, k samples each, and how it was scored.

    =========  ===============  ======================================================
    correct    (N, k) bool      the sample solves its problem
    answers    N lists of k     extracted from the samples, for the vote
    greedy     (N,) bool, None  the most likely completion solves the problem
    tokens     (N, K, T) int    completions; K = k, and before them the greedy one
    length     (N, K) int       their tokens
    unscored   int              completions whose verifier failed; they are not correct
    =========  ===============  ======================================================
    """

    correct: np.ndarray
    answers: list[list]
    greedy: np.ndarray | None
    tokens: np.ndarray
    length: np.ndarray
    unscored: int

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k, k up to the number of samples."""
        return float(metrics.pass_at_k(self.correct, k).mean())

    def summary(self) -> dict[str, float]:
        """Shares of the problems: greedy, pass@1, pass@k, avg@k and maj@k."""
        k, out = self.correct.shape[1], {}
        if self.greedy is not None:
            out["greedy"] = float(self.greedy.mean())
        if k:
            out |= {f"pass@{n}": self.pass_at(n) for n in sorted({1, k})}
            out[f"avg@{k}"] = float(metrics.avg_at_k(self.correct).mean())
            votes = metrics.maj_at_k(self.answers, self.correct)
            out[f"maj@{k}"] = float(votes.mean())
        out["length"] = float(self.length.mean())
        return out | ({"unscored": float(self.unscored)} if self.unscored else {})


def evaluate(
    model: Model,
    params,
    task: Task,
    *,
    samples: int = 8,
    greedy: bool = True,
    length: int,
    key,
    logits: Transform | None = None,
    batch: int = 32,
    mesh: jax.sharding.Mesh | None = None,
) -> Evaluation:
    """Samples every problem of a task and scores it.

    The greedy completion and the samples of a problem share one reading of its prompt.
    Sample j of a problem is the same whatever ``samples``, ``greedy`` and ``batch`` are.
    One program serves all chunks and later calls with the same model, task and slot.

    Args:
      model: the policy.
      params: its parameters.
      task: the held-out problems.
      samples: k, drawn for each problem.
      greedy: also write the most likely completion of each problem.
      length: T, most new tokens.
      key: PRNG key; the same key gives the same samples.
      logits: a logits slot for the samples, for example
        ``gpo.sampling.temperature(0.6)``; make it once, a new one compiles anew.
      batch: problems at once.
      mesh: devices that share the rows of a chunk.

    Returns:
      `Evaluation`.

    Raises:
      ValueError: nothing is asked for, or more samples than rows have identities for.

    Reference: library word; pass@k and maj@k as in `gpo.metrics`.

    Deviations: a completion counts as correct when its total reward reaches
      ``task.correct``; one that could not be scored is not correct.
    """
    checks.bounded("samples", samples, 0, _SAMPLES - 1)
    checks.require(samples > 0 or greedy, "samples=0 and greedy=False ask for nothing")
    checks.bounded("batch", batch, 1)
    rows = np.arange(0 if greedy else 1, samples + 1, dtype=np.int32)
    slot = _WHOLE if logits is None else logits
    run = functools.partial(
        _run, model=model, score=task.score, stop=task.stop, slot=slot.update,
        length=length, mesh=mesh,
    )  # fmt: skip
    state = slot.init(jax.ShapeDtypeStruct((1, model.config.vocab), jnp.float32))
    count, found = len(task.length), []
    for start in range(0, count, batch):
        at = np.arange(start, start + min(batch, count)) % count
        real = np.arange(start, start + len(at)) < count
        columns = {n: np.asarray(c)[at] for n, c in task.columns.items()}
        read = (task.prompts[at], task.length[at], at.astype(np.int32), columns)
        chunk = run(params, key, read, real, rows, state)
        found.append([np.asarray(x)[real] for x in hosts.read(chunk)])
    tokens, size, score = (np.concatenate(xs) for xs in zip(*found, strict=True))
    return _judge(task, greedy, tokens, size, score)


@functools.partial(
    jax.jit, static_argnames=("model", "score", "stop", "slot", "length", "mesh")
)
def _run(
    params, key, read, real, rows, state, *, model, score, stop, slot, length, mesh
):
    """Tokens (C, K, T), lengths (C, K) and total scores (C, K) of C problems."""
    contexts, sizes, prompt, columns = read
    width, count = rows.shape[0], contexts.shape[0]
    group = jnp.repeat(jnp.arange(count, dtype=jnp.int32), width)
    plan = Plan(
        contexts=contexts,
        length=sizes,
        context=group,
        prompt=prompt[group],
        group=group,
        row=(prompt[:, None] * _SAMPLES + rows[None]).ravel(),
        width=width,
    )
    plan = sharding.rows(plan, mesh)

    def logits(z, state, batch, key):
        drawn, state = slot(z, state, batch, key)
        best, _ = _GREEDY.update(z, (), batch, key)
        first = (batch.plan.row % _SAMPLES == 0)[:, None]
        return jnp.where(first, best, drawn), state

    batch, _ = decode.sample(
        model, params, plan, key,
        length=length, stop=stop, logits=Transform(lambda z: state, logits), state=state,
    )  # fmt: skip
    own = {name: column[group] for name, column in columns.items()}
    # verifiers are not asked about the padding of the last chunk
    value = score(batch.replace(**own, live=real[group]))
    columns = (batch["tokens"], batch["length"], metrics.total(value))
    return tuple(x.reshape(count, width, *x.shape[1:]) for x in columns)


def _judge(task: Task, greedy: bool, tokens, size, score) -> Evaluation:
    first = 1 if greedy else 0
    correct = score >= task.correct  # NaN is not
    answers = [
        [task.extract(task.decode(t[:n].tolist())) for t, n in zip(*one, strict=True)]
        for one in zip(tokens[:, first:], size[:, first:], strict=True)
    ]
    best = correct[:, 0] if greedy else None
    missing = int(np.isnan(score).sum())
    return Evaluation(correct[:, first:], answers, best, tokens, size, missing)
