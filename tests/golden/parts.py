"""Golden weights, cuts of the support, selections and steps."""

import math

from golden.case import INF, NAN, Golden

import gpo
from gpo import gradient, sampling, select, weight

LN = math.log
MASK = {"mask": [[1, 1, 0], [1, 1, 1]]}  # T3: 2 and 3 tokens of 3
ONES = [[1.0, 1, 0], [1, 1, 1]]
ENTROPY = [[0.1, 2, 0.3, 0.05, 1.2], [0.2, 0.9, 0.01, 0.4, 0.6]]
P = [[LN(0.5), LN(0.3), LN(0.15), LN(0.05)]]  # already in order
CUT2, CUT3 = [[*P[0][:2], -INF, -INF]], [[*P[0][:3], -INF]]
# [171]: ratios 1, .8, 1.3, 6: (sum 9.1)^2 / (4 * 39.33) = .526379, its root .725520
RATIOS = {"logp": [[0.0], [LN(0.8)], [LN(1.3)], [LN(6)]], "old_logp": [[0.0]] * 4}

PIVOT = gpo.stateless(
    lambda value, batch: select.drop_pivot().update(
        batch.replace(reward=value), (), batch, None
    )[0].live.astype(value.dtype)
)  # fmt: skip

BY_NAME = {
    "weight.token_mean": (
        Golden("T3", weight.token_mean(), ONES, [[0.2, 0.2, 0], [0.2, 0.2, 0.2]], MASK),
        Golden("T6", weight.token_mean(), [[0.0]], [[0.0]], {"mask": [[0]]}),
    ),
    "weight.sequence_mean": (
        Golden("T3", weight.sequence_mean(), ONES,
               [[0.25, 0.25, 0], [1 / 6, 1 / 6, 1 / 6]], MASK),
        # rows that are not live count nowhere, a live row without tokens does
        Golden("T6", weight.sequence_mean(), [[1.0], [0.0], [0.0]], [[0.5], [0], [0]],
               {"mask": [[1], [0], [1]], "live": [True, True, False]}),
    ),
    "weight.sequence_sum": (
        Golden("T3", weight.sequence_sum(), ONES, [[0.5, 0.5, 0], [0.5, 0.5, 0.5]],
               MASK),
    ),
    "weight.token_sum": (
        # the limit is the width of the batch
        Golden("T3", weight.token_sum(), ONES, [[1 / 6, 1 / 6, 0], [1 / 6] * 3], MASK),
    ),
    "weight.token_sum budget": (
        Golden("T3", weight.token_sum(4), ONES, [[0.125, 0.125, 0], [0.125] * 3], MASK),
    ),
    "weight.times": (Golden("product", weight.times(0.3), [[2.0]], [[0.6]]),),
    "weight.forking": (
        # the .8 quantile of ten entropies lies at 7.2: .9 + .2 (1.2 - .9) = .96
        Golden("[316]", weight.forking(0.2), [[1.0] * 5] * 2,
               [[0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], {"old_entropy": ENTROPY}),
        # equal entropies keep every token, and masked ones never count
        Golden("[316]", weight.forking(0.2), [[1.0, 1, 0]], [[1, 1, 0]],
               {"old_entropy": [[0.3, 0.3, NAN]], "mask": [[1, 1, 0]]}),
    ),
    "sampling.temperature": (
        Golden("z / .5", sampling.temperature(0.5), [[0.0, 1, 2]], [[0, 2, 4]]),
    ),
    "sampling.top_k": (
        Golden("2 largest", sampling.top_k(2), P, CUT2),
        Golden("ties stay", sampling.top_k(1), [[1.0, 3, 3]], [[-INF, 3, 3]]),
        Golden("replayed", sampling.top_k(2), P, P, {"support": [[0, 1]]}),
    ),
    "sampling.top_p": (
        # .5 + .3 reaches .79 but not .81
        Golden("mass", sampling.top_p(0.79), P, CUT2),
        Golden("mass", sampling.top_p(0.81), P, CUT3),
        Golden("all", sampling.top_p(1.0), [[0.0, -40.0]], [[0.0, -40.0]]),
        Golden("replayed", sampling.top_p(0.1), P, P, {"support": [[0, 1]]}),
    ),
    "sampling.min_p": (
        # at least .2 * .5 = .1
        Golden("share", sampling.min_p(0.2), P, CUT3),
        Golden("replayed", sampling.min_p(0.9), P, P, {"support": [[0, 1]]}),
    ),
    "sampling.greedy": (
        Golden("first", sampling.greedy(), [[1.0, 3, 3]], [[-INF, 3, -INF]]),
        Golden("replayed", sampling.greedy(), P, P, {"support": [[0, 1]]}),
    ),
    "select.drop_pivot": (
        # one row a group leaves: the median, the first among equals
        Golden("[3]", PIVOT, [0.1, 0.4, 0.5, 0.9, 1.0], [1, 1, 0, 1, 1],
               {"group": [0] * 5}),
        Golden("[3]", PIVOT, [0.0, 1, 1, 1, 0], [1, 0, 1, 1, 1], {"group": [0] * 5}),
        Golden("[3]", PIVOT, [3.0], [0], {"group": [0]}),
        # a dead row neither is the median nor revives
        Golden("votes", PIVOT, [1.0, NAN, 3, 5], [1, 0, 0, 1],
               {"group": [0] * 4, "live": [True, False, True, True]}),
    ),
    "gradient.scale_by_ess": (
        Golden("[171]", gradient.scale_by_ess(), [2.0], [2 * 0.725520], RATIOS,
               atol=2e-6),
        Golden("[171]", gradient.scale_by_ess(rule=gradient.ess.linear), [2.0],
               [2 * 0.526379], RATIOS, atol=2e-6),
        Golden("[171] B = 0", gradient.scale_by_ess(), [2.0], [0.0],
               RATIOS | {"live": [False] * 4}),
    ),
    "gradient.after": (
        # .526379 / .8 = .657974
        Golden("[171]", gradient.after(gradient.scale_by_ess, base=0.8), [1.0],
               [0.657974**0.5], RATIOS, atol=2e-6),
    ),
}  # fmt: skip
