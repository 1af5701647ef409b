"""Golden advantages and rewards."""

from golden.case import NAN, Golden

import gpo
from gpo import advantage, reward, segment

ONE = [0, 0, 0, 0]
R = [1.0, 0.0, 0.0, 2.0]  # T17: mean .75, squared deviations 2.75
MEDIAN = advantage.center(baseline=segment.lower_median)
CENTRED = Golden("T17", advantage.center(), R, [0.25, -0.75, -0.75, 1.25],
                 {"group": ONE})  # fmt: skip
MC_GRPO = gpo.chain(MEDIAN, advantage.scale(eps=1e-3, spread=advantage.mad))

# T18: groups of 2 and 3, means 1/2 and 2/3, also in another order
RAGGED = ([1.0, 0.0, 0.0, 1.0, 1.0], [0, 0, 1, 1, 1], [0.5, -0.5, -2 / 3, 1 / 3, 1 / 3])
SHUFFLED = [3, 0, 4, 1, 2]


def singleton(part):
    """T16: a group of one has advantage 0, never NaN."""
    return Golden("T16", part, [3.0], [0.0], {"group": [0]})


def ragged(order):
    """T18 in an order of the rows, with other names for the groups."""
    r, ids, a = ([x[i] for i in order] for x in RAGGED)
    return Golden("T18", advantage.center(), r, a, {"group": [7 - 4 * i for i in ids]})


# [280], fresh accumulators, groups (0,0,0,0) and (1,1,0,1): the means 0 and .75 have
# mu .375 and tau2 .140625, the variances 0 and .1875 have mean .09375, so
# S = (.09375/4) / (.09375/4 + .140625) = 1/7 and V = 6/7 mean + 1/7 .375
EBPO_R = [0.0, 0, 0, 0, 1, 1, 0, 1]
EBPO_IDS = {"group": [0] * 4 + [1] * 4}
V0, V1 = 0.375 / 7, (6 * 0.75 + 0.375) / 7

# [90]: the pooled mean is 5/8, the hints have means 2/3 and 1/3, two plain rows
NUDGE_R = [1.0, 0, 1, 1, 0, 0, 1, 0]
NUDGE = {"group": [0] * 8, "context": [1, 1, 1, 2, 2, 2, 0, 0]}
NUDGE_HALF = [0.516667, -0.483333, 0.516667, 0.483333, -0.516667, -0.516667, 0.5, -0.5]

ADVANTAGES = {
    "advantage.center": (
        CENTRED, ragged(range(5)), ragged(SHUFFLED), singleton(advantage.center()),
        # a missing reward is no zero: the mean of the others is 1
        Golden("missing", advantage.center(), [0.0, NAN, 2.0], [-1.0, 0.0, 1.0],
               {"group": [0] * 3}),
    ),
    "advantage.center leave_one_out": (
        Golden("T17", advantage.center(baseline=segment.leave_one_out), R,
               [1 / 3, -1, -1, 5 / 3], {"group": ONE}),
        singleton(advantage.center(baseline=segment.leave_one_out)),
    ),
    "advantage.center batch": (
        # the mean of both groups is 2
        Golden("mean", advantage.center(()), [1.0, 3.0], [-1.0, 1.0], {"group": [0, 1]}),
    ),
    "advantage.scale": (
        # std with ddof 1 of (1, 3) is sqrt 2; the value is not centred
        Golden("std", advantage.scale(eps=0.5), [1.0, 3.0],
               [1 / (2**0.5 + 0.5), 3 / (2**0.5 + 0.5)], {"group": [0, 0]}),
        # spread + eps = 0 gives 0
        Golden("zero", advantage.scale(eps=0.0), [3.0, 3.0], [0, 0], {"group": [0, 0]}),
    ),
    "advantage.scale mad": (
        Golden("[3]", MC_GRPO, [0.1, 0.4, 0.5, 0.9, 1.0],
               [-0.99751, -0.24938, 0, 0.99751, 1.24688], {"group": [0] * 5}, atol=5e-6),
        Golden("[3]", MC_GRPO, [1.0, 1, 1, 0, 0], [0, 0, 0, -1000, -1000],
               {"group": [0] * 5}),
        Golden("[3]", MC_GRPO, [1.0, 0, 0], [1000, 0, 0], {"group": [0] * 3}),
        singleton(MC_GRPO),
    ),
    "advantage.zscore": (
        Golden("T17", advantage.zscore(), R, [0.261089, -0.783268, -0.783268, 1.305446],
               {"group": ONE}, atol=5e-7),
        singleton(advantage.zscore()),
    ),
    "advantage.zscore population": (
        Golden("T17", advantage.zscore(ddof=0, eps=0.0), R,
               [0.301511, -0.904534, -0.904534, 1.507557], {"group": ONE}, atol=5e-7),
        Golden("T17", advantage.zscore(ddof=0), R,
               [0.301475, -0.904425, -0.904425, 1.507375], {"group": ONE}, atol=5e-7),
        # T20: rewards that were summed before
        Golden("T20", advantage.zscore(ddof=0, eps=0.0), [11.0, 0, 1, 10],
               [1.0945, -1.0945, -0.8955, 0.8955], {"group": ONE}, atol=5e-5),
        singleton(advantage.zscore(ddof=0, eps=0.0)),
    ),
    "advantage.zscore scale_by": (
        # group means .5 and 1; the batch (1, 0, 0, 2) has variance 2.75 / 3
        Golden("two keys", advantage.zscore(scale_by=(), eps=0.0), R,
               [x / (2.75 / 3) ** 0.5 for x in (0.5, -0.5, -1, 1)],
               {"group": [0, 0, 1, 1]}),
    ),
    "advantage.rescale_valid": (
        Golden("[285]", gpo.chain(advantage.center(), advantage.rescale_valid()),
               [1.0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1],
               [1.125, -0.375, -0.375, -0.375, 0, 0, 0, 0, 0.375, 0.375, -1.125, 0.375],
               {"group": [0] * 4 + [1] * 4 + [2] * 4,
                "reward": [1.0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1]}),
    ),
    "advantage.kl_to_go": (
        # logp - ref is (.5, -.25, 1), still to come (1.25, .75, 1), times .1
        Golden("sums", advantage.kl_to_go(0.1), [1.0], [[0.875, 0.925, 0.9]],
               {"old_logp": [[-1.0, -2, -1]], "ref_logp": [[-1.5, -1.75, -2]]}),
    ),
    "advantage.empirical_bayes": (
        Golden("[280]", advantage.empirical_bayes(), EBPO_R,
               [-V0] * 4 + [1 - V1, 1 - V1, -V1, 1 - V1], EBPO_IDS),
    ),
    "advantage.inter_intra": (
        Golden("[90]", advantage.inter_intra(1.1), NUDGE_R, NUDGE_HALF, NUDGE,
               atol=5e-7),
        Golden("T16", advantage.inter_intra(1.1), [3.0], [0.0],
               {"group": [0], "context": [1]}),
    ),
}  # fmt: skip

REWARDS = {
    "reward.overlong": (
        Golden("T23", reward.overlong(10, 4), [0.0] * 6, [0, 0, -0.25, -0.5, -1, -1],
               {"length": [5, 6, 7, 8, 10, 11]}),
    ),
    "reward.kl_penalty": (
        # (.5 - .25) and, with one token masked, .5
        Golden("sums", reward.kl_penalty(2.0), [1.0, 1.0], [0.5, 0.0],
               {"old_logp": [[-1.0, -2], [-1, NAN]], "mask": [[1, 1], [1, 0]],
                "ref_logp": [[-1.5, -1.75], [-1.5, 0]]}),
    ),
    "reward.total": (
        Golden("[70] nansum", reward.total(1.0, 0.5), [[1.0, 2], [NAN, 2], [NAN, NAN]],
               [2.0, 1.0, NAN]),
        Golden("T20", gpo.chain(
            gpo.per_column(advantage.zscore(ddof=0, eps=0.0)), reward.total()),
            [[1.0, 10], [0, 0], [1, 0], [0, 10]], [2, -2, 0, 0], {"group": ONE}),
        Golden("T20", gpo.chain(
            gpo.per_column(advantage.zscore(ddof=0, eps=0.0)), reward.total(),
            advantage.zscore((), ddof=0, eps=0.0)),
            [[1.0, 10], [0, 0], [1, 0], [0, 10]], [2**0.5, -(2**0.5), 0, 0],
            {"group": ONE}),
    ),
}  # fmt: skip
BY_NAME = ADVANTAGES | REWARDS
