"""What a run is: everything that the next step needs, and nothing else."""

from typing import Any, NamedTuple

import jax

from gpo.recipe import Recipe
from gpo.train.sharding import path_name


class TrainState(NamedTuple):
    """All that a resume needs.

    =============  =================================================================
    step           () int32, updates done
    key            root PRNG key; never changes: step n draws from ``fold_in(key, n)``
    params         of the policy
    opt            optimiser state, for the trainable parameters
    prompt_logits  (N,) float32: P prompts are drawn by Gumbel top-k
    recipe         `Recipe` of the transforms' states
    sampler        state of the sampler between steps
    reference      frozen parameters for ``ref_logp``, or None
    skipped        () int32, non-finite updates in a row
    =============  =================================================================
    """

    step: Any
    key: Any
    params: Any
    opt: Any
    prompt_logits: Any
    recipe: Recipe
    sampler: Any
    reference: Any
    skipped: Any


def partition(params, trainable):
    """(trained, frozen): two trees like ``params`` with None where the other has it.

    ``trainable`` takes a path such as ``layers/mlp/up/kernel``; None: all is trained.
    """
    if trainable is None:
        return params, jax.tree.map(lambda _: None, params)

    def keep(wanted):
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x if trainable(path_name(path)) == wanted else None, params
        )

    return keep(True), keep(False)


def merge(trained, frozen):
    """Undoes `partition`."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda x: x is None
    )
