"""Diagnostics: pure functions of a finished batch, never state."""

import jax.numpy as jnp
import numpy as np

from gpo import segment
from gpo.batch import Batch


def masked_mean(x, where):
    """Mean of ``x`` where ``where``; 0 over nothing."""
    count = jnp.maximum(jnp.sum(where.astype(x.dtype)), 1)
    return jnp.sum(jnp.where(where, x, 0)) / count


def total(score):
    """(B,) sum of a row's rewards (B,) or (B, K); NaN only where none of them is known."""
    if score.ndim == 1:
        return score
    missing = jnp.isnan(score).all(1)
    return jnp.where(missing, jnp.nan, jnp.nansum(score, axis=1))


def log_ratio(batch: Batch, name: str = "old_logp"):
    """(B, T) ``logp - batch[name]``, 0 on invalid tokens."""
    return jnp.where(batch.valid("token"), batch["logp"] - batch[name], 0)


def summary(batch: Batch) -> dict:
    """Scalars that every run reports; those whose columns are missing are left out.

    ============  ==================================================================
    reward        mean over live rows
    no_signal     share of groups whose live rows all have one reward
    length        mean tokens of a live row
    truncated     share of live rows cut off by the length limit
    live          share of rows that are live
    advantage     mean absolute advantage
    entropy       mean over valid tokens (nats)
    ratio         mean of exp(logp - old_logp); ``ratio_max`` its maximum
    outside       share of valid tokens with a ratio outside [0.8, 1.28]
    kl_old        mean k3 estimate of KL(old || current) from sampled tokens (nats)
    kl_ref        mean k3 estimate of KL(current || reference) on sampled tokens (nats)
    ============  ==================================================================
    """
    out = {}
    rows = batch.valid("rollout")
    out["live"] = jnp.mean(rows.astype(jnp.float32))
    reward = batch.get("reward")
    if reward is not None and reward.ndim == 1:
        out["reward"] = masked_mean(reward, rows)
        if batch.get("group") is not None:
            out["no_signal"] = no_signal(batch)
    if batch.get("length") is not None:
        out["length"] = masked_mean(batch["length"].astype(jnp.float32), rows)
    if batch.get("truncated") is not None:
        out["truncated"] = masked_mean(batch["truncated"].astype(jnp.float32), rows)
    if batch.get("advantage") is not None:
        a = batch["advantage"]
        level = "rollout" if a.ndim == 1 else "token"
        out["advantage"] = masked_mean(jnp.abs(a), batch.valid(level, a))
    if batch.get("logp") is None:
        return out
    valid = batch.valid("token")
    if batch.get("entropy") is not None:
        out["entropy"] = masked_mean(batch["entropy"], valid)
    if batch.get("old_logp") is not None:
        d = log_ratio(batch)
        ratio = jnp.exp(d)
        out["ratio"] = masked_mean(ratio, valid)
        out["ratio_max"] = jnp.max(jnp.where(valid, ratio, 0))
        out["outside"] = masked_mean(
            ((ratio < 0.8) | (ratio > 1.28)).astype(d.dtype), valid
        )
        out["kl_old"] = masked_mean(jnp.expm1(d) - d, valid)
    if batch.get("ref_logp") is not None:
        d = -log_ratio(batch, "ref_logp")
        out["kl_ref"] = masked_mean(jnp.expm1(d) - d, valid)
    return out


def no_signal(batch: Batch):
    """Share of groups whose live rows all got one reward (``max = min``)."""
    key, rows = batch.key("group"), batch.valid("rollout")
    same = segment.constant(batch["reward"], key, rows).astype(jnp.float32)
    # each group counts once: its rows share one vote
    vote = rows.astype(jnp.float32) / jnp.maximum(
        segment.count(key, rows, jnp.float32), 1
    )
    return jnp.sum(vote * same) / jnp.maximum(jnp.sum(vote), 1e-9)


def pass_at_k(correct, k: int) -> np.ndarray:
    """Unbiased pass@k of each problem: ``1 - C(n - c, k) / C(n, k)``.

    Args:
      correct: (problems, n) booleans.
      k: 1 <= k <= n.

    Returns:
      (problems,) probabilities that a random k of the n samples has a correct one.

    Raises:
      ValueError: k is outside [1, n].

    Example:
      >>> pass_at_k(np.array([[1, 0, 0, 0]]), 2).tolist()
      [0.5]

    Reference: Evaluating Large Language Models Trained on Code, Chen et al., 2021,
      arXiv 2107.03374.
    """
    correct = np.asarray(correct, bool)
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n = {n} samples, received k = {k}")
    wrong = n - correct.sum(1)
    factors = 1 - k / np.arange(1, n + 1)
    # C(n-c, k) / C(n, k) = prod_{i = n-c+1}^{n} (1 - k / i), 0 when n - c < k
    return np.array([1 - (np.prod(factors[w:]) if w >= k else 0.0) for w in wrong])


def avg_at_k(correct) -> np.ndarray:
    """Mean correctness of each problem's samples: (problems, k) -> (problems,)."""
    return np.asarray(correct, float).mean(1)


def maj_at_k(answers, correct) -> np.ndarray:
    """Whether the most frequent answer of each problem is correct.

    Args:
      answers: (problems, k) hashable answers; None or "" never wins.
      correct: (problems, k) booleans.

    Returns:
      (problems,) booleans; ties go to the answer that was seen first.

    Reference: Self-Consistency, Wang et al., 2022, arXiv 2203.11171.
    """
    wins = []
    for row, right in zip(answers, np.asarray(correct, bool), strict=True):
        row = list(row)
        votes = [a for a in row if a is not None and a != ""]
        best = max(votes, key=votes.count) if votes else None
        wins.append(bool(votes) and bool(right[row.index(best)]))
    return np.array(wins)
