"""Recipes that change how rewards become credit."""

from gpo import advantage, gradient, reward, segment, select, weight
from gpo.combine import chain, per_column
from gpo.recipe import Recipe
from gpo.recipes.base import dapo, grpo


def mc_grpo(eps: float = 1e-3) -> Recipe:
    """GRPO around the median, whose row leaves the loss; for odd groups.

    ``A = (r - med_g) / (MAD_g + eps)``.

    Args:
      eps: floor of the scale. With binary rewards and odd groups MAD is 0, and a
        minority row gets ±1/eps: the scale then rests on the optimiser.

    Returns:
      A recipe.

    Reference: MC-GRPO [3], lotusroot-kim/MC-GRPO.

    Deviations: the released KL of .04 is left out, as in `grpo`.

    Status: code
    """
    return grpo()._replace(
        advantage=chain(
            advantage.center(baseline=segment.lower_median),
            advantage.scale(eps=eps, spread=advantage.mad),
        ),
        select=select.drop_pivot(),
    )


def ebpo() -> Recipe:
    """GRPO with an empirical-Bayes baseline and batch standardisation.

    Returns:
      A recipe.

    Reference: EBPO: Empirical Bayes Policy Optimization, 2026, arXiv 2602.05165 [280].

    Status: paper
    """
    standard = advantage.zscore(by=(), ddof=0, eps=1e-6)
    return grpo()._replace(advantage=chain(advantage.empirical_bayes(), standard))


def gdpo(*weights: float, eps: float = 1e-4) -> Recipe:
    """Each of K rewards is standardised in its group, then summed and whitened.

    ``S_b = Σ_k w_k (r_{b,k} - mean_g) / (std_g + eps)``; ``A = (S - mean) / (std + eps)``
    over all rows.

    Args:
      *weights: of the K rewards; none: all 1.
      eps: added to both standard deviations (ddof 1).

    Returns:
      A recipe for rewards (B, K); NaN means that a reward does not apply.

    Reference: Group reward-Decoupled Normalization Policy Optimization [70],
      NVlabs/GDPO.

    Deviations: whitened over rows, as in TRL; the authors' verl code whitens over
      tokens. K = 1 is GRPO followed by batch whitening.

    Status: code
    """
    decoupled = per_column(advantage.zscore(eps=eps))
    return grpo()._replace(
        reward=chain(decoupled, reward.total(*weights)),
        advantage=advantage.zscore(by=(), eps=eps),
    )


def forking_tokens(share: float = 0.2) -> Recipe:
    """DAPO on the tokens of highest entropy only.

    Args:
      share: of tokens that are trained; .2 as published.

    Returns:
      A recipe.

    Reference: Beyond the 80/20 Rule, Wang et al., 2025, arXiv 2506.01939 [316].

    Status: code
    """
    kept = chain(weight.forking(share), weight.token_mean())
    return dapo()._replace(weight=kept)


def vcpo_ess(base: float = 1.0) -> Recipe:
    """GRPO whose step shrinks with the effective sample size.

    Args:
      base: share of effective rows from which the full step is taken.

    Returns:
      A recipe.

    Reference: VCPO: Variance Controlled Policy Optimization, 2026, arXiv 2602.17616
      [171], part (i).

    Deviations: the step scaling alone; the off-policy baseline of part (ii) needs
      per-row score norms.

    Status: code
    """
    return grpo()._replace(gradient=gradient.after(gradient.scale_by_ess, base=base))
