"""Golden gains: what is differentiated. Gains are maximised, so a loss is minus these."""

import math

from golden.case import NAN, Golden

import gpo
from gpo import objective
from gpo.objective import ratio, regulariser, trust
from gpo.recipe import Recipe

LN = math.log
CLIP = gpo.chain(ratio.token(), trust.clip())
DUAL = gpo.chain(CLIP, trust.dual(3.0))

# T1: losses -1.2, 2, -.5, .8, -1.1, 1.1 with gradients 0, 2, -.5, 0, -1.1, 1.1
QUADRANTS = [[LN(2)], [LN(2)], [LN(0.5)], [LN(0.5)], [LN(1.1)], [LN(1.1)]]
SIGNS = {"advantage": [1.0, -1, 1, -1, 1, -1], "old_logp": [[0.0]] * 6}


def kl(estimator, values, slopes):
    """T14 as a loss: the sum of the estimates, whose gradient is their slope."""
    only = gpo.chain(gpo.stateless(lambda x, b: 0 * x), regulariser.kl(1.0, estimator))
    recipe = Recipe(objective=only)
    return Golden("T14", recipe, [[0.5], [-0.5]], sum(values),
                  {"ref_logp": [[0.0]] * 2, "advantage": [0.0] * 2},
                  [[s] for s in slopes], 2e-6)  # fmt: skip


# T7: a masked token may hold anything; value and gradient are those of the row alone
MASKED = {"mask": [[1, 0]], "old_logp": [[-1.0, NAN]], "advantage": [2.0]}

BY_NAME = {
    "objective.ratio.token": (
        Golden("exp", ratio.token(), [[LN(2), LN(0.5)]], [[2, 0.5]],
               {"old_logp": [[0.0, 0]]}, [[2, 0.5]]),
        Golden("T7", ratio.token(), [[-1.0, NAN]], [[1, 1]], MASKED, [[1, 0]]),
        # log-ratios are limited to 20, where the gradient ends
        Golden("[200]", ratio.token(), [[100.0]], [[math.exp(20)]],
               {"old_logp": [[0.0]]}, [[0.0]]),
    ),
    "objective.ratio.sequence": (
        # exp of the mean, not the mean or the sum of exps; 3 tokens share the slope
        Golden("T11b", ratio.sequence(), [[0.1, -0.2, 0.15]], [[1.016806] * 3],
               {"old_logp": [[0.0] * 3]}, [[1.016806] * 3], 5e-7),
        Golden("T11b", ratio.sequence(), [[-0.0705] * 8], [[0.931928] * 8],
               {"old_logp": [[0.0] * 8]}, atol=5e-7),
        Golden("T7", ratio.sequence(), [[-1.0 + LN(3), NAN]], [[3, 3]], MASKED,
               [[6, 0]]),
    ),
    "objective.reinforce": (
        Golden("A logp", objective.reinforce(), [[-1.5, NAN]], [[-3, 0]], MASKED,
               [[2, 0]]),
    ),
    "objective.likelihood": (
        Golden("logp", objective.likelihood(), [[-1.5, NAN]], [[-1.5, 0]], MASKED,
               [[1, 0]]),
    ),
    "objective.entropy": (
        Golden("H", objective.entropy(), [[-1.5, -1]], [[0.7, 0]],
               {"mask": [[1, 0]], "entropy": [[0.7, NAN]]}, [[0, 0]]),
    ),
    "objective.trust.unclipped": (
        Golden("ratio A", trust.unclipped(), [[3.0, 0.5]], [[-6, -1]],
               {"advantage": [-2.0]}, [[-2, -2]]),
    ),
    "objective.trust.clip": (
        Golden("T1", CLIP, QUADRANTS, [[1.2], [-2], [0.5], [-0.8], [1.1], [-1.1]], SIGNS,
               [[0], [-2], [0.5], [0], [1.1], [-1.1]]),
        # [200]: coefficients of logp in the gradient of PPO with clips .2 and .28
        Golden("[200]", gpo.chain(ratio.token(), trust.clip(0.2, 0.28)),
               [[LN(0.3)], [LN(0.9999)], [LN(4)], [LN(9)]],
               [[0.3], [-0.9999], [1.28], [-9]],
               {"advantage": [1.0, -1, 1, -1], "old_logp": [[0.0]] * 4},
               [[0.3], [-0.9999], [0], [-9]]),
    ),
    "objective.trust.dual": (
        Golden("T2", DUAL, [[LN(5)], [LN(2)], [LN(5)]], [[-3], [-2], [1.2]],
               {"advantage": [-1.0, -1, 1], "old_logp": [[0.0]] * 3},
               [[0], [-2], [0]]),
        # the bound does not depend on the clip
        Golden("T2", gpo.chain(ratio.token(), trust.clip(0.1, 0.1), trust.dual(3.0)),
               [[LN(5)]], [[-3]], {"advantage": [-1.0], "old_logp": [[0.0]]}, [[0]]),
    ),
    "objective.trust.cap": (
        # weights .3, 1, 4, 5 with cap 5; .8, 1, 1.28, 1.28 in verl's form
        Golden("[200]", trust.cap(5.0), [[0.3], [1.0], [4.0], [9.0]],
               [[-0.6], [2], [-8], [10]],
               {"advantage": [1.0, -1, 1, -1], "logp": [[-2.0]] * 4}, [[0.0]] * 4),
        Golden("[200]", trust.cap(1.28, 0.8), [[0.3], [1.0], [4.0], [9.0]],
               [[-1.6], [2], [-2.56], [2.56]],
               {"advantage": [1.0, -1, 1, -1], "logp": [[-2.0]] * 4}),
    ),
    "objective.regulariser.kl": (
        Golden("gain - .1 k3", regulariser.kl(0.1), [[1.0]], [[1 - 0.1 * 0.106531]],
               {"logp": [[0.5]], "ref_logp": [[0.0]]}, [[1]], 5e-7),
    ),
    "objective.regulariser.k1": (kl(regulariser.k1, (0.5, -0.5), (1, 1)),),
    "objective.regulariser.k2": (kl(regulariser.k2, (0.125, 0.125), (0.5, -0.5)),),
    "objective.regulariser.k3": (
        kl(regulariser.k3, (0.106531, 0.148721), (0.393469, -0.648721)),
    ),
    "objective.regulariser.k3_ratio": (
        kl(regulariser.k3_ratio, (0.106531, 0.148721), (0.5, -0.5)),
    ),
    "objective.regulariser.entropy_bonus": (
        Golden("gain + .5 H", regulariser.entropy_bonus(0.5), [[1.0, 1.0]], [[1.2, 1.0]],
               {"mask": [[1, 0]], "entropy": [[0.4, NAN]]}, [[1, 1]]),
    ),
}  # fmt: skip
