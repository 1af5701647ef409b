"""The base recipes; every other method is a difference from one of these."""

from gpo import advantage, reward, segment, weight
from gpo.combine import chain
from gpo.objective import ratio, regulariser, reinforce, trust
from gpo.recipe import Recipe


def clipped(low: float, high: float, kl: float = 0.0, of=ratio.token):
    """``chain(ratio, clip)``, with a KL to the reference where it is asked for."""
    terms = (of(), trust.clip(low, high))
    return chain(*terms, regulariser.kl(kl)) if kl else chain(*terms)


def grpo(
    low: float = 0.2, high: float = 0.2, kl: float = 0.0, eps: float = 1e-4
) -> Recipe:
    """Group relative policy optimisation.

    ``A = (r - mean_g) / (std_g + eps)``; ``mean_b mean_t min(ρA, clip(ρ)A) - kl · k3``.

    Args:
      low: clip below.
      high: clip above.
      kl: coefficient of the k3 estimate to the reference; needs ``ref_logp`` when > 0.
      eps: added to the standard deviation (ddof 1).

    Returns:
      A recipe.

    Reference: DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open
      Language Models, Shao et al., 2024, arXiv 2402.03300.

    Deviations: the paper uses kl .04 and states neither clip, ddof nor eps; the KL is
      off by default, as in later practice.

    Status: code
    """
    return Recipe(
        advantage=advantage.zscore(eps=eps),
        weight=weight.sequence_mean(),
        objective=clipped(low, high, kl),
    )


def bnpo(low: float = 0.2, high: float = 0.2, kl: float = 0.0) -> Recipe:
    """GRPO with every token of the batch counting the same: ``Σ m gain / Σ m``.

    Args:
      low: clip below.
      high: clip above.
      kl: coefficient of the KL to the reference.

    Returns:
      A recipe.

    Reference: the "bnpo" loss of TRL 1.16 (token mean over the active tokens).

    Deviations: TRL normalises over the local batch; here over the whole minibatch, so
      the result does not depend on how it is split. Not the Beta-normalisation method
      of the same name (arXiv 2506.02864).

    Status: code
    """
    return grpo(low, high, kl)._replace(weight=weight.token_mean())


def dr_grpo(
    low: float = 0.2, high: float = 0.2, kl: float = 0.0, budget: int | None = None
) -> Recipe:
    """GRPO without its length and difficulty biases: no std, constant denominator.

    Args:
      low: clip below.
      high: clip above.
      kl: coefficient of the KL to the reference; 0 in the paper.
      budget: tokens in the denominator; None: the generation limit T.

    Returns:
      A recipe.

    Reference: Understanding R1-Zero-Like Training: A Critical Perspective, Liu et al.,
      2025, arXiv 2503.20783.

    Status: code
    """
    return grpo(low, high, kl)._replace(
        advantage=advantage.center(), weight=weight.token_sum(budget)
    )


def rloo(kl: float = 0.0) -> Recipe:
    """Leave-one-out baseline and plain score function on whole answers.

    ``A_i = r_i - mean_{j≠i} r_j``; ``mean_b A_b Σ_t logp``.

    Args:
      kl: coefficient of the sequence KL taken off the reward; needs ``ref_logp``.

    Returns:
      A recipe.

    Reference: Back to Basics: Revisiting REINFORCE Style Optimization for Learning from
      Human Feedback in LLMs, Ahmadian et al., 2024, arXiv 2402.14740.

    Deviations: the paper's KL coefficient depends on the data (.03 or .1); off here. A
      group of one has advantage 0.

    Status: paper
    """
    recipe = Recipe(
        advantage=advantage.center(baseline=segment.leave_one_out),
        weight=weight.sequence_sum(),
        objective=reinforce(),
    )
    return recipe._replace(reward=reward.kl_penalty(kl)) if kl else recipe


def reinforce_pp(low: float = 0.2, high: float = 0.2, kl: float = 0.0) -> Recipe:
    """REINFORCE++: advantages standardised over the whole batch, PPO clip.

    Args:
      low: clip below.
      high: clip above.
      kl: coefficient of the token KL inside the return; needs ``ref_logp`` when > 0.

    Returns:
      A recipe.

    Reference: REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global
      Advantage Normalization, Hu et al., 2025, arXiv 2501.03262.

    Deviations: the KL is off by default; ddof 1 and eps 1e-8 as in released code. With
      a KL, advantages are standardised over tokens.

    Status: paper
    """
    standard = advantage.zscore(by=(), ddof=1, eps=1e-8)
    credit = chain(advantage.kl_to_go(kl), standard) if kl else standard
    return grpo(low, high)._replace(advantage=credit)


def dapo(
    low: float = 0.2,
    high: float = 0.28,
    limit: int | None = None,
    cache: int | None = None,
) -> Recipe:
    """GRPO with clip-higher, token mean and a soft punishment of overlong answers.

    Args:
      low: clip below.
      high: clip above.
      limit: length limit in tokens of the overlong penalty; None: no penalty.
      cache: tokens over which the penalty grows; None: a fifth of the limit.

    Returns:
      A recipe.

    Reference: DAPO: An Open-Source LLM Reinforcement Learning System at Scale, Yu et
      al., 2025, arXiv 2503.14476.

    Deviations: dynamic sampling (drawing again until every group has a signal) is not
      part of it: groups without signal have advantage 0 and stay in the token count.

    Status: code
    """
    recipe = bnpo(low, high)
    if limit is None:
        return recipe
    return recipe._replace(reward=reward.overlong(limit, cache or max(limit // 5, 1)))


def gspo(low: float = 3e-4, high: float = 4e-4) -> Recipe:
    """GRPO with length-normalised sequence ratios.

    Args:
      low: clip below; 3e-4 as published.
      high: clip above; 4e-4 as published.

    Returns:
      A recipe.

    Reference: Group Sequence Policy Optimization, Zheng et al., 2025, arXiv 2507.18071.

    Status: code
    """
    return grpo()._replace(objective=clipped(low, high, of=ratio.sequence))


def cispo(cap: float = 5.0, floor: float = 0.0) -> Recipe:
    """Capped importance weights on the score function; every token keeps a gradient.

    Args:
      cap: absolute cap of the weight.
      floor: absolute floor of the weight.

    Returns:
      A recipe.

    Reference: MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning
      Attention, MiniMax, 2025, arXiv 2506.13585 [200].

    Deviations: the paper does not state its cap; 5 is TRL's suggestion.

    Status: code
    """
    return bnpo()._replace(objective=chain(ratio.token(), trust.cap(cap, floor)))


def gpg() -> Recipe:
    """Plain policy gradient on centred rewards, rescaled for groups without signal.

    ``A = (r - mean_g) · #groups / #groups with signal``; ``Σ m A logp / Σ m``.

    Returns:
      A recipe.

    Reference: GPG: A Simple and Strong Reinforcement Learning Baseline for Model
      Reasoning, Chu et al., 2025, arXiv 2504.02546 [285].

    Deviations: generation is not repeated when few groups have a signal.

    Status: code
    """
    return Recipe(
        advantage=chain(advantage.center(), advantage.rescale_valid()),
        weight=weight.token_mean(),
        objective=reinforce(),
    )
