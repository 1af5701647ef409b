"""One row for every part and recipe: adding a method is adding a row.

`tests/contracts` runs every contract on every row, `tests/golden` its golden numbers.
A row says how the part is made, what it is given and which contracts it is excused
from, with the reason. Contracts: ``golden``, ``permute`` (rows), ``relabel`` (groups),
``masked`` (junk where nothing is), ``removed`` (dead rows taken out), ``edges``,
``single`` and ``equal`` (advantage exactly 0), ``whole`` (couples rows: refuses a
microbatch). What all rows keep has no name: jit, state, compile, structs, dtype,
sharded, microbatches, documented.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import optax
from golden import cases

import gpo
from gpo import (
    advantage,
    allocation,
    auxiliary,
    behaviour,
    buffer,
    context,
    curriculum,
    gradient,
    objective,
    recipes,
    reward,
    sampling,
    segment,
    select,
    weight,
)
from gpo.advantage.group import keyed
from gpo.objective import ratio, regulariser, trust


@dataclasses.dataclass(frozen=True)
class Row:
    """One part or recipe with arguments.

    =======  =======================================================================
    name     as users write it, without ``gpo.``; a suffix after a space tells
             several rows of one part apart
    make     makes the part
    value    batch -> what its slot takes
    edit     batch -> batch, where the part needs special columns
    excused  contract -> why it does not apply
    =======  =======================================================================
    """

    name: str
    make: Callable[[], Any]
    value: Callable[[gpo.Batch], Any]
    edit: Callable[[gpo.Batch], gpo.Batch] = lambda batch: batch
    excused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def public(self) -> str:
        """The name of what the row tests."""
        return self.name.split(" ")[0]

    @property
    def golden(self) -> tuple:
        """Golden cases of the row."""
        return cases.BY_NAME.get(self.name, ())


def rows(names, value, excused=None, edit=None) -> list[Row]:
    """Rows that share what they are given."""
    more = {} if edit is None else {"edit": edit}
    excused = excused or {}
    return [
        Row(name, make, value, excused=excused | own, **more)
        for name, make, own in (n if len(n) == 3 else (*n, {}) for n in names)
    ]


def statistic(fn, **arguments):
    """A segment function as a part, over the groups of the batch."""

    def spread_back(value, batch):
        key, where = keyed(value, batch, "group")
        return fn(value, key, where, **arguments).astype(value.dtype)

    return gpo.stateless(spread_back)


def function(fn):
    """A plain function of the value as a part."""
    return gpo.stateless(lambda value, batch: fn(value).astype(value.dtype))


def hinted(batch):
    """A third of the rows under the plain prompt, the others under two hints."""
    context = batch.plan.group + 4 * (batch.plan.row % 3)
    return batch.replace(plan=batch.plan.replace(context=context))


LOCAL = {"whole": "row by row: a microbatch may split groups"}
ROWLESS = {
    "permute": "its value has no rows", "relabel": "reads no groups",
    "masked": "its value has no masked slots", "removed": "its value has no rows",
    "edges": "its value has no groups", "single": "no advantage",
    "equal": "no advantage", "whole": "its value has no groups",
}  # fmt: skip
NOT_CENTRED = {"single": "not centred", "equal": "not centred"}
NO_ADVANTAGE = {"single": "no advantage", "equal": "no advantage"}
TRIVIAL = LOCAL | NOT_CENTRED | {"golden": "returns what its function returns"}
BATCHWIDE = {
    "single": "its baseline is the batch",
    "equal": "its baseline is the batch",
}
POSITION = {"permute": "order matters", "removed": "order matters"}

# ---------------------------------------------------------------- segment statistics
STATISTICS = rows(
    [
        ("segment.total", lambda: statistic(segment.total)),
        ("segment.mean", lambda: statistic(segment.mean)),
        ("segment.var", lambda: statistic(segment.var, ddof=1)),
        ("segment.std", lambda: statistic(segment.std, ddof=0)),
        ("segment.max", lambda: statistic(segment.max)),
        ("segment.min", lambda: statistic(segment.min)),
        ("segment.constant", lambda: statistic(segment.constant)),
        ("segment.nth", lambda: statistic(lambda x, k, w: segment.nth(x, k, 1, w))),
        ("segment.quantile", lambda: statistic(
            lambda x, k, w: segment.quantile(x, k, 0.3, w))),
        ("segment.median", lambda: statistic(segment.median)),
        ("segment.lower_median", lambda: statistic(segment.lower_median)),
        ("segment.rank", lambda: statistic(segment.rank), {
            "removed": "rows that do not vote come after all others"}),
        ("segment.leave_one_out", lambda: statistic(segment.leave_one_out)),
        ("segment.softmax", lambda: statistic(segment.softmax)),
        ("segment.cumulative", lambda: statistic(segment.cumulative), POSITION),
        ("advantage.mad", lambda: statistic(advantage.mad)),
    ],
    lambda b: b.reward,
    {"single": "a statistic", "equal": "a statistic",
     "golden": "numpy loops in tests/algebra/test_segment.py"},
)  # fmt: skip

# ------------------------------------------------------------------------- advantage
ADVANTAGES = rows(
    [
        ("advantage.center", lambda: advantage.center()),
        ("advantage.center leave_one_out", lambda: advantage.center(
            baseline=segment.leave_one_out)),
        ("advantage.center batch", lambda: advantage.center(()), BATCHWIDE),
        ("advantage.scale", lambda: advantage.scale(eps=1e-4),
         NOT_CENTRED),
        ("advantage.scale mad", lambda: gpo.chain(
            advantage.center(baseline=segment.lower_median),
            advantage.scale(eps=1e-3, spread=advantage.mad))),
        ("advantage.zscore", lambda: advantage.zscore()),
        ("advantage.zscore population", lambda: advantage.zscore(ddof=0, eps=0.0)),
        ("advantage.zscore scale_by", lambda: advantage.zscore(scale_by=())),
        ("advantage.rescale_valid", lambda: gpo.chain(
            advantage.center(), advantage.rescale_valid())),
        ("advantage.kl_to_go", lambda: advantage.kl_to_go(0.1), LOCAL | NOT_CENTRED),
        ("advantage.empirical_bayes", lambda: advantage.empirical_bayes(), BATCHWIDE),
        ("identity", lambda: gpo.identity(), TRIVIAL),
        ("stateless", lambda: gpo.stateless(lambda v, b: 2 * v), TRIVIAL),
        ("stochastic", lambda: gpo.stochastic(lambda v, b, key: v), TRIVIAL),
    ],
    lambda b: b.reward,
)  # fmt: skip
ADVANTAGES += rows(
    [("advantage.inter_intra", lambda: advantage.inter_intra(1.1))],
    lambda b: b.reward,
    edit=hinted,
)
COMBINATORS = rows(
    [
        ("chain", lambda: gpo.chain(advantage.center(), advantage.scale(eps=1e-4))),
        ("named_chain", lambda: gpo.named_chain(
            shrink=advantage.empirical_bayes(), scale=advantage.scale((), eps=1e-4)),
         BATCHWIDE),
        ("weighted_sum", lambda: gpo.weighted_sum(
            (0.5, advantage.center()), (0.5, advantage.empirical_bayes())), BATCHWIDE),
        ("where", lambda: gpo.where(
            lambda v, b: b["length"] > 2, advantage.center(), advantage.zscore())),
        ("scheduled", lambda: gpo.scheduled(
            lambda coef: gpo.stateless(lambda v, b: v * coef.astype(v.dtype)),
            coef=optax.linear_schedule(1.0, 0.0, 4)), LOCAL | NOT_CENTRED),
    ],
    lambda b: b.reward,
    {"golden": "tests/algebra/test_combine.py"},
)  # fmt: skip
COMBINATORS += rows(
    [("per_column", lambda: gpo.per_column(advantage.zscore()))],
    lambda b: b["rewards"],
    {"golden": "T20, in recipes.gdpo"},
)

# ---------------------------------------------------------------------------- reward
REWARDS = rows(
    [
        ("reward.overlong", lambda: reward.overlong(5, 3)),
        ("reward.kl_penalty", lambda: reward.kl_penalty(0.1)),
    ],
    lambda b: b.reward,
    LOCAL | NO_ADVANTAGE,
) + rows(
    [("reward.total", lambda: reward.total(1.0, 0.5))],
    lambda b: b["rewards"],
    LOCAL | NO_ADVANTAGE,
)

# ---------------------------------------------------------------------------- weight
WEIGHTS = rows(
    [
        ("weight.token_mean", lambda: weight.token_mean()),
        ("weight.sequence_mean", lambda: weight.sequence_mean()),
        ("weight.sequence_sum", lambda: weight.sequence_sum()),
        ("weight.token_sum", lambda: weight.token_sum()),
        ("weight.token_sum budget", lambda: weight.token_sum(7)),
        ("weight.times", lambda: weight.times(0.5)),
    ],
    lambda b: b.valid("token").astype(b.logp.dtype),
    {"whole": "weights are computed before a minibatch is split"} | NO_ADVANTAGE,
) + rows(
    [("weight.forking", lambda: weight.forking(0.3))],
    lambda b: b.valid("token").astype(b.logp.dtype),
    NO_ADVANTAGE,
)

# ------------------------------------------------------------------------- objective
OBJECTIVES = rows(
    [
        ("objective.ratio.token", lambda: ratio.token()),
        ("objective.ratio.sequence", lambda: ratio.sequence()),
        ("objective.reinforce", lambda: objective.reinforce()),
        ("objective.likelihood", lambda: objective.likelihood()),
        ("objective.entropy", lambda: objective.entropy()),
    ],
    lambda b: b.logp,
    LOCAL | NO_ADVANTAGE,
) + rows(
    [
        ("objective.trust.unclipped", lambda: trust.unclipped()),
        ("objective.trust.clip", lambda: trust.clip(0.2, 0.28)),
        ("objective.trust.dual", lambda: gpo.chain(trust.clip(), trust.dual(1.1))),
        ("objective.trust.cap", lambda: trust.cap(1.2, 0.7)),
        ("objective.regulariser.kl", lambda: regulariser.kl(0.1)),
        ("objective.regulariser.k1", lambda: regulariser.kl(0.1, regulariser.k1)),
        ("objective.regulariser.k2", lambda: regulariser.kl(0.1, regulariser.k2)),
        ("objective.regulariser.k3", lambda: regulariser.kl(0.1, regulariser.k3)),
        ("objective.regulariser.k3_ratio", lambda: regulariser.kl(
            0.1, regulariser.k3_ratio)),
        ("objective.regulariser.entropy_bonus", lambda: regulariser.entropy_bonus(.1)),
    ],
    lambda b: jnp.exp(b.logp - b.old_logp),
    LOCAL | NO_ADVANTAGE,
)  # fmt: skip

# -------------------------------------------------------------- sampling, behaviour
SAMPLING = rows(
    [
        ("sampling.temperature", lambda: sampling.temperature(0.5)),
        ("sampling.top_k", lambda: sampling.top_k(4)),
        ("sampling.top_p", lambda: sampling.top_p(0.7)),
        ("sampling.min_p", lambda: sampling.min_p(0.2)),
        ("sampling.greedy", lambda: sampling.greedy()),
    ],
    lambda b: jnp.sin(7 * b.reward[:, None] * jnp.arange(1.0, 12.0)[None]),
    LOCAL | NO_ADVANTAGE | {
        "masked": "logits exist for real positions only",
        "removed": "rows are independent",
        "edges": "-inf marks the tokens that were cut",
    },
)  # fmt: skip
STATEFUL = {"golden": "worked step by step in tests/golden/test_stateful.py"}
BEHAVIOURS = rows(
    [
        ("behaviour.perturb", lambda: behaviour.perturb(0.1)),
        ("behaviour.delay", lambda: behaviour.delay(2)),
    ],
    lambda b: {"w": b["ref_logp"], "b": {"c": b.reward}},
    ROWLESS | STATEFUL,
)

# ---------------------------------------------- curriculum, allocation, context, rows
PROMPTS = rows(
    [
        ("curriculum.mopps", lambda: curriculum.mopps()),
        ("curriculum.mopps pool", lambda: curriculum.mopps(0.3, 0.7, 0.9, pool=4)),
        ("curriculum.best_first", lambda: function(curriculum.best_first),
         STATEFUL | {"whole": "reads no batch"}),
        ("curriculum.beta_update", lambda: gpo.stateless(
            lambda v, b: jnp.stack(curriculum.beta_update(v, v + 1, b, 0.5, (1., 1.))))),
        ("allocation.knapsack learns", lambda: allocation.knapsack()),
    ],
    lambda b: jnp.cos(jnp.arange(6.0)),
    STATEFUL | NO_ADVANTAGE | {"whole": "sees the finished batch"},
)  # fmt: skip
SHARES = rows(
    [
        ("allocation.knapsack", lambda: allocation.knapsack()),
        (
            "allocation.largest_remainder",
            lambda: function(lambda v: allocation.largest_remainder(v, 16)),
        ),
    ],
    lambda b: jnp.asarray([0.3, 0.2, 0.4, 0.1]),
    STATEFUL | ROWLESS,
    lambda b: gpo.Batch(
        plan=b.plan, extras={"candidates": jnp.asarray([4, 0, 5, 2], jnp.int32)}
    ),
)
CONTEXTS = rows(
    [("context.hints", lambda: context.hints([[1, 2], [7]], at=1))],
    lambda b: b.plan,
    LOCAL | NO_ADVANTAGE | {
        "relabel": "contexts are laid out by the numbers of the groups",
        "masked": "nothing is sampled yet", "removed": "nothing is sampled yet",
        "edges": "nothing is scored yet",
        "golden": "layout worked in tests/algebra/test_context.py",
    },
)  # fmt: skip
BATCHES = rows(
    [
        ("select.keep_rows", lambda: select.keep_rows(7), LOCAL | {
            "golden": "tests/algebra/test_select.py"}),
        ("select.drop_pivot", lambda: select.drop_pivot()),
        ("buffer.reuse", lambda: buffer.reuse(0.5), STATEFUL | {
            "permute": "replaces the last row of a group"}),
    ],
    lambda b: b,
    NO_ADVANTAGE | {"removed": "returns rows"},
)  # fmt: skip
GRADIENTS = rows(
    [
        ("gradient.scale_by_ess", lambda: gradient.scale_by_ess()),
        ("gradient.after", lambda: gradient.after(gradient.scale_by_ess, base=0.5)),
    ],
    lambda b: {"w": jnp.ones((7,))},
    NO_ADVANTAGE | {"whole": "sees the whole minibatch"},
)

# ---------------------------------------------------------------------------- losses
AUXILIARIES = rows(
    [
        ("auxiliary.entropy_bonus", lambda: auxiliary.entropy_bonus(0.1)),
        ("auxiliary.distil_to_prompt", lambda: auxiliary.distil_to_prompt(0.1)),
    ],
    lambda b: b.logp,
    LOCAL | NO_ADVANTAGE,
) + rows(
    [("auxiliary.demonstration", lambda: gpo.Auxiliary(
        auxiliary.demonstration(0.1).weight, auxiliary.demonstration(0.1).objective))],
    lambda b: b.logp,
    LOCAL | NO_ADVANTAGE,
)  # fmt: skip
RECIPES = rows(
    [
        ("recipes.grpo", lambda: recipes.grpo()),
        ("recipes.grpo kl", lambda: recipes.grpo(kl=0.04), {"equal": "the KL remains",
                                                            "single": "the KL remains"}),
        ("recipes.bnpo", lambda: recipes.bnpo()),
        ("recipes.dr_grpo", lambda: recipes.dr_grpo()),
        ("recipes.rloo", lambda: recipes.rloo()),
        ("recipes.rloo kl", lambda: recipes.rloo(kl=0.1), {"equal": "the KL remains"}),
        ("recipes.reinforce_pp", lambda: recipes.reinforce_pp(), BATCHWIDE),
        ("recipes.reinforce_pp kl", lambda: recipes.reinforce_pp(kl=0.1), BATCHWIDE),
        ("recipes.dapo", lambda: recipes.dapo()),
        ("recipes.dapo overlong", lambda: recipes.dapo(limit=5, cache=3),
         {"equal": "lengths make a difference"}),
        ("recipes.gspo", lambda: recipes.gspo(0.2, 0.2)),
        ("recipes.cispo", lambda: recipes.cispo(1.2)),
        ("recipes.gpg", lambda: recipes.gpg()),
        ("recipes.mopps", lambda: recipes.mopps()),
        ("recipes.knapsack_grpo", lambda: recipes.knapsack_grpo()),
        ("recipes.ar3po", lambda: recipes.ar3po(0.5)),
        ("recipes.mc_grpo", lambda: recipes.mc_grpo()),
        ("recipes.ebpo", lambda: recipes.ebpo(), BATCHWIDE),
        ("recipes.forking_tokens", lambda: recipes.forking_tokens()),
        ("recipes.vcpo_ess", lambda: recipes.vcpo_ess()),
    ],
    lambda b: b.logp,
) + rows(
    [("recipes.nudge", lambda: recipes.nudge([[1], [2, 3]]))],
    lambda b: b.logp,
    edit=hinted,
) + rows(
    [("recipes.gdpo", lambda: recipes.gdpo(1.0, 0.5))],
    lambda b: b.logp,
    edit=lambda b: b.replace(reward=b["rewards"]),
)  # fmt: skip

TABLE = (
    *STATISTICS, *ADVANTAGES, *COMBINATORS, *REWARDS, *WEIGHTS, *OBJECTIVES, *SAMPLING,
    *BEHAVIOURS, *PROMPTS, *SHARES, *CONTEXTS, *BATCHES, *GRADIENTS, *AUXILIARIES,
    *RECIPES,
)  # fmt: skip
BY_NAME = {row.name: row for row in TABLE}
