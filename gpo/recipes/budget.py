"""Recipes that change which prompts are asked, how often and how."""

from collections.abc import Sequence

from gpo import advantage, allocation, auxiliary, buffer, context, curriculum
from gpo.combine import chain
from gpo.recipe import Recipe
from gpo.recipes.base import grpo


def mopps(low: float = 0.5, high: float = 0.5, decay: float = 1.0) -> Recipe:
    """GRPO on the prompts whose predicted success is nearest to one half.

    Args:
      low: lower end of the target band.
      high: upper end of the target band.
      decay: of the posterior.

    Returns:
      A recipe.

    Reference: Can Prompt Difficulty be Online Predicted for Accelerating RL Finetuning
      of Reasoning Models?, Qu et al., 2025, arXiv 2507.04632 [187].

    Status: code
    """
    return grpo()._replace(curriculum=curriculum.mopps(low, high, decay))


def knapsack_grpo(low: int = 2, high: int = 128) -> Recipe:
    """GRPO with rollouts spent where a mixed group is likely: ragged groups.

    Args:
      low: least rollouts of a prompt.
      high: most rollouts of a prompt.

    Returns:
      A recipe.

    Reference: Knapsack RL, 2025, arXiv 2509.25849 [149].

    Status: paper
    """
    return grpo()._replace(allocation=allocation.knapsack(low, high))


def ar3po(correct: float = 1.0) -> Recipe:
    """GRPO that reuses an earlier correct answer where a group found none.

    Args:
      correct: least reward of a correct answer.

    Returns:
      A recipe.

    Reference: AR3PO, 2025, arXiv 2509.25808 [84].

    Deviations: response reuse alone; rollouts are not added in stages.

    Status: paper
    """
    return grpo()._replace(buffer=buffer.reuse(correct))


def nudge(
    hints: Sequence[Sequence[int]],
    dropout: float = 0.5,
    at: int = 0,
    ratio: float = 1.1,
    distil: float = 0.1,
) -> Recipe:
    """Asks with and without hints, and carries what they teach to the plain prompt.

    Args:
      hints: M hints as token ids.
      dropout: share of rows that read the plain prompt.
      at: position of the hint in the prompt.
      ratio: weight of the between-context part of the advantage.
      distil: coefficient of the distillation term.

    Returns:
      A recipe.

    Reference: NudgeRL [90], tally0818/NudgeRL.

    Status: code
    """
    standard = advantage.zscore(ddof=0, eps=1e-5)
    return grpo()._replace(
        context=context.hints(hints, dropout, at),
        advantage=chain(advantage.inter_intra(ratio), standard),
        auxiliary=(auxiliary.distil_to_prompt(distil),),
    )
