"""Golden losses and advantages of recipes.

The common example: one group, rewards (1, 0), ratios (1.5, .9) and (1.1), old
log-probs -1. With ddof 1 the standard deviation of (1, 0) is sqrt(1/2), so grpo's
advantages are +-A with A = .5 / (sqrt(1/2) + 1e-4).
"""

import math

from golden.advantages import EBPO_IDS, EBPO_R, NUDGE, NUDGE_R
from golden.case import Golden
from golden.parts import ENTROPY

import gpo
from gpo import auxiliary, recipes, weight
from gpo.recipe import Recipe

LN = math.log
LOGP = [[-1 + LN(1.5), -1 + LN(0.9)], [-1 + LN(1.1), 9.0]]
COLUMNS = {"old_logp": [[-1.0, -1], [-1, 7]], "mask": [[1, 1], [1, 0]],
           "group": [0, 0], "length": [2, 1]}  # fmt: skip
REWARDED = COLUMNS | {"reward": [1.0, 0.0]}
REFERENCE = {"ref_logp": [[-1.1, -1.1], [-1.1, 0]]}  # .1 nats a token
A = 0.5 / (0.5**0.5 + 1e-4)
A8 = 0.5 / (0.5**0.5 + 1e-8)


def example(recipe, loss, grad, **more):
    """The common example; ``grad`` of its three tokens."""
    grad = [[grad[0], grad[1]], [grad[2], 0]]
    return Golden("worked", recipe, LOGP, loss, REWARDED | more, grad)


def on_policy(recipe):
    """T11: loss 0, gradient (-.25, -.25, .25, .25)."""
    return Golden("T11", recipe, [[-1.0, -1], [-1, -1]], 0.0, {"advantage": [1.0, -1]},
                  [[-0.25, -0.25], [0.25, 0.25]])  # fmt: skip


def advantages(source, recipe, expected, atol=1e-9, **columns):
    return Golden(source, recipe, None, expected, columns, atol=atol)


# mean_b mean_t: ((1.2 + .9)/2 - 1.1)/2 = -.025; the first token is clipped
GRPO = example(recipes.grpo(), 0.025 * A, (0, -0.225 * A, 0.55 * A))
# /(sum m = 3)
BNPO = example(recipes.bnpo(), -A / 3, (0, -0.3 * A, 1.1 / 3 * A))
S0 = (1.5 * 0.9) ** 0.5  # geometric mean of the first row's ratios
C0, C1, C2 = (-1 + LN(x) for x in (1.5, 0.9, 1.1))
# the k3 to the reference, d = logp - ref: exp(-d) - 1 + d, slope 1 - exp(-d)
D = [LN(1.5) + 0.1, LN(0.9) + 0.1, LN(1.1) + 0.1]
K3 = [math.exp(-d) - 1 + d for d in D]
SLOPE = [0.5 * (1 - math.exp(-d)) for d in D]  # coefficient .5
# [285] with a dead group: centred +-.5, times 2 groups / 1 with signal
GPG_A = [1.0, -1.0, 0.0, 0.0]
ENTROPY_ROWS = {"entropy": [[0.2, 0.4], [0.9, 5.0]]}  # mean over the tokens: .5
# [70]: two groups of three rows with two rewards each
GDPO_R = [[1.0, 1], [1, 0], [0, 0], [0, 1], [1, 1], [1, 1]]
GDPO_A = [1.369198, 0, -1.369198, -0.912799, 0.456399, 0.456399]
# token returns .9, .95 and -.05: mean .6, squared deviations .635, ddof 1
RPP_STD = (0.635 / 2) ** 0.5


def term(made):
    """A recipe whose loss is one auxiliary term."""
    return Recipe(weight=weight.times(0.0), auxiliary=(made,))


BY_NAME = {
    "recipes.grpo": (GRPO, on_policy(recipes.grpo())),
    "recipes.grpo kl": (
        example(recipes.grpo(kl=0.5),
                0.025 * A + 0.5 * ((K3[0] + K3[1]) / 4 + K3[2] / 2),
                (SLOPE[0] / 4, -0.225 * A + SLOPE[1] / 4, 0.55 * A + SLOPE[2] / 2),
                **REFERENCE),
    ),
    "recipes.bnpo": (BNPO, on_policy(recipes.bnpo())),
    "recipes.dr_grpo": (
        # A = .5, /(2 rows * 2 tokens): (1.2 + .9 - 1.1) / 8
        example(recipes.dr_grpo(), -0.125, (0, -0.1125, 0.1375)),
        example(recipes.dr_grpo(budget=4), -0.0625, (0, -0.05625, 0.06875)),
    ),
    "recipes.rloo": (
        # A = 1 - 0; half of the token sums
        example(recipes.rloo(), -(C0 + C1 - C2) / 2, (-0.5, -0.5, 0.5)),
        advantages("T17", recipes.rloo(), [1 / 3, -1, -1, 5 / 3],
                   reward=[1.0, 0, 0, 2], group=[0] * 4),
    ),
    "recipes.rloo kl": (
        # rewards 1 - .5 * .2 and 0 - .5 * .1 differ by .95
        example(recipes.rloo(kl=0.5), -0.95 * (C0 + C1 - C2) / 2,
                (-0.475, -0.475, 0.475), **REFERENCE),
    ),
    "recipes.reinforce_pp": (
        example(recipes.reinforce_pp(), 0.025 * A8, (0, -0.225 * A8, 0.55 * A8)),
        on_policy(recipes.reinforce_pp()),
    ),
    "recipes.reinforce_pp kl": (
        advantages("worked", recipes.reinforce_pp(kl=0.5),
                   [[0.3 / RPP_STD, 0.35 / RPP_STD], [-0.65 / RPP_STD, 0]], 1e-7,
                   **REWARDED, **REFERENCE),
    ),
    "recipes.dapo": (
        # clip-higher lets 1.28 through: (1.28 + .9 - 1.1) / 3
        example(recipes.dapo(), -0.36 * A, (0, -0.3 * A, 1.1 / 3 * A)),
        on_policy(recipes.dapo()),
    ),
    "recipes.dapo overlong": (
        # the first row is at the limit: 1 - 1 = 0, no signal is left
        example(recipes.dapo(limit=2, cache=1), 0.0, (0, 0, 0)),
    ),
    "recipes.gspo": (
        example(recipes.gspo(0.2, 0.2), -(S0 - 1.1) / 2 * A,
                (-S0 / 4 * A, -S0 / 4 * A, 0.55 * A)),
        Golden("T13", recipes.gspo(0.2, 0.2), [[0.1, -0.3, 0], [0.4, 0, -0.1]], 0.100167,
               {"old_logp": [[0.0] * 3] * 2, "mask": [[1, 1, 0], [1, 1, 1]],
                "advantage": [1.0, -1]},
               [[-0.226209, -0.226209, 0], [0.184195] * 3], 5e-7),
        on_policy(recipes.gspo()),
    ),
    "recipes.cispo": (
        # weights 1.2, .9, 1.1; every token keeps its gradient
        example(recipes.cispo(1.2), -(1.2 * C0 + 0.9 * C1 - 1.1 * C2) / 3 * A,
                (-0.4 * A, -0.3 * A, 1.1 / 3 * A)),
        # T12: three rows of one token, so each counts a third
        Golden("T12", recipes.cispo(2.0), [[-2 + LN(3)], [-2 + LN(0.5)], [-2 + LN(3)]],
               -0.5 * (-2 + LN(0.5)) / 3,
               {"advantage": [1.0, 1, -1], "old_logp": [[-2.0]] * 3},
               [[-2 / 3], [-0.5 / 3], [2 / 3]]),
        on_policy(recipes.cispo()),
    ),
    "recipes.gpg": (
        advantages("[285]", recipes.gpg(), GPG_A, reward=[1.0, 0, 0, 0],
                   group=[0, 0, 1, 1]),
        # every group has a signal: A = .5, token mean
        example(recipes.gpg(), -(C0 + C1 - C2) / 6, (-1 / 6, -1 / 6, 1 / 6)),
    ),
    "recipes.mopps": (GRPO._replace(part=recipes.mopps()),),
    "recipes.knapsack_grpo": (GRPO._replace(part=recipes.knapsack_grpo()),),
    "recipes.vcpo_ess": (GRPO._replace(part=recipes.vcpo_ess()),),
    "recipes.ar3po": (
        # [84] with the answer in the place of a row: one success among four
        advantages("[84]", gpo.recipes.grpo(eps=0.0), [-0.5, -0.5, -0.5, 1.5],
                   reward=[0.0, 0, 0, 1], group=[0] * 4),
        # and appended to four
        advantages("[84]", gpo.recipes.grpo(eps=0.0), [-0.447214] * 4 + [1.788854],
                   5e-7, reward=[0.0, 0, 0, 0, 1], group=[0] * 5),
    ),
    "recipes.nudge": (
        advantages("[90]", recipes.nudge([[1]]),
                   [1.024388, -0.958299, 1.024388, 0.958299, -1.024388, -1.024388,
                    0.991344, -0.991344], 5e-7, reward=NUDGE_R, **NUDGE),
    ),
    "recipes.mc_grpo": (
        advantages("[3]", recipes.mc_grpo(), [-0.99751, -0.24938, 0, 0.99751, 1.24688],
                   5e-6, reward=[0.1, 0.4, 0.5, 0.9, 1.0], group=[0] * 5),
        # (1, .5, 0) gives +-1 at scale .5 + 1e-3; the middle row is taken out, so the
        # other two count a half each
        Golden("[3]", recipes.mc_grpo(), [[-1.0]] * 3, 0.0,
               {"reward": [1.0, 0.5, 0.0], "group": [0] * 3},
               [[-0.25 / 0.501], [0], [0.25 / 0.501]]),
    ),
    "recipes.ebpo": (
        advantages("[280]", recipes.ebpo(),
                   [-0.172345] * 4 + [0.976621, 0.976621, -2.240484, 0.976621], 2e-6,
                   reward=EBPO_R, **EBPO_IDS),
    ),
    "recipes.forking_tokens": (
        # two of ten tokens are kept, and all ten are counted
        Golden("[316]", recipes.forking_tokens(0.2), [[-1.0] * 5] * 2, -0.2,
               {"advantage": [1.0, 1.0], "old_entropy": ENTROPY},
               [[0, -0.1, 0, 0, -0.1], [0] * 5]),
    ),
    "recipes.gdpo": (
        advantages("[70]", recipes.gdpo(), GDPO_A, 5e-7, reward=GDPO_R,
                   group=[0, 0, 0, 1, 1, 1]),
    ),
    "auxiliary.entropy_bonus": (
        Golden("coef mean H", term(auxiliary.entropy_bonus(0.1)), LOGP, -0.05,
               COLUMNS | ENTROPY_ROWS | {"advantage": [1.0, -1]}, [[0, 0], [0, 0]]),
    ),
    "auxiliary.distil_to_prompt": (
        # [90]: coef mean_b A mean_t logp = .1 (2 (C0 + C1)/2 - C2) / 2
        Golden("[90]",
               term(auxiliary.distil_to_prompt(0.1)._replace(source=None)), LOGP,
               -0.05 * (C0 + C1 - C2), COLUMNS | {"advantage": [2.0, -1]},
               [[-0.05, -0.05], [0.05, 0]]),
    ),
    "auxiliary.demonstration": (
        # coef mean_t logp over three tokens
        Golden("mean", term(auxiliary.demonstration(0.3)._replace(source=None)), LOGP,
               -0.1 * (C0 + C1 + C2), COLUMNS | {"advantage": [1.0, -1]},
               [[-0.1, -0.1], [-0.1, 0]]),
    ),
}  # fmt: skip
