"""Checkpoints of a `TrainState` with what it belongs to, through orbax."""

import dataclasses
import importlib.metadata
import json
import pathlib
import platform
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

import gpo
from gpo import checks
from gpo.models.decoder import Model
from gpo.recipe import Recipe, describe
from gpo.tasks import base
from gpo.train import sharding
from gpo.train.sharding import path_name

# what a run must keep to be continued; its settings and versions may change
BOUND = ("recipe", "model", "task", "state")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
_TEMPORARY = "*.orbax-checkpoint-tmp*"


class SaveError(RuntimeError):
    """A checkpoint could not be written; says which one is the last complete one.

    ``state`` holds the state that `gpo.train.fit` could not save at its end, else None.
    """

    state: Any = None


def about(
    model: Model,
    recipe: Recipe,
    task: base.Task,
    *,
    weights: str = "",
    config: Mapping | None = None,
) -> dict:
    """What a run is, as plain data: saved beside its state and compared on resume.

    Args:
      model: the policy.
      recipe: its description is kept, slot by slot.
      task: its fingerprint is kept.
      weights: fingerprint of the initial parameters (`gpo.models.load.Loaded`).
      config: the settings of the run (batch sizes, ...), for people: they may change.

    Returns:
      A dict that JSON keeps as it is.

    Reference: library word.
    """
    shape = model.config
    sizes = dataclasses.asdict(shape) if dataclasses.is_dataclass(shape) else shape
    slots = [line.split(maxsplit=1) for line in describe(recipe).splitlines()]
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    found = {
        "recipe": dict(slots),
        "model": {"config": sizes, "weights": weights},
        "task": {"prompts": len(task.length), "fingerprint": base.fingerprint(task)},
        "config": config or {},
        "versions": {"python": platform.python_version(), "gpo": gpo.__version__}
        | versions,
    }
    return json.loads(json.dumps(found, default=repr))


def differences(saved: Mapping, now: Mapping, names=BOUND) -> list[str]:
    """Lines ``recipe.objective: saved ..., now ...`` for all that differs.

    Example:
      >>> differences({"recipe": {"weight": "a"}}, {"recipe": {"weight": "b"}})
      ['recipe.weight: saved a, now b']

    Reference: library word.
    """
    old, new = ({k: v for k, v in x.items() if k in names} for x in (saved, now))
    return list(_differences(old, new, ""))


def _differences(old, new, path):
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(n for n in new if n not in old)]:
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}")
    elif old != new:
        told = ["nothing" if x in (None, "") else x for x in (old, new)]
        yield f"{path[1:]}: saved {told[0]}, now {told[1]}"


def structure(state):
    """The state as `jax.ShapeDtypeStruct`s with the shardings of its arrays."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def _named(tree) -> dict[str, Any]:
    """Leaves by their paths: the empty parts of a state need not be stored."""
    return {path_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def _is_key(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _shapes(state) -> dict[str, str]:
    return {n: f"{x.dtype}{list(x.shape)}" for n, x in _named(state).items()}


def _stored(leaf):
    """A `jax.ShapeDtypeStruct` of what is written for a leaf, with its placement."""
    placed = getattr(leaf, "sharding", None)
    if placed is None:
        placed = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if _is_key(leaf):
        placed = sharding.key_data(placed, leaf.ndim)
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)


class Checkpoints:
    """The checkpoints of one run, in a folder with one entry a step.

    Writing goes on in the background while training does; an entry appears under its
    name only when it is complete, so that a kill at any moment leaves the earlier ones.

    Args:
      folder: where; made when the first checkpoint is saved.
      about: what the run is (`about`); a state is only restored to an equal one.
      keep: how many of the latest checkpoints stay.
    """

    def __init__(self, folder: str | pathlib.Path, about: Mapping, keep: int = 2):
        checks.bounded("keep", keep, 1)
        self.folder = pathlib.Path(folder).absolute()
        self._about = dict(about)
        self._begun: int | None = None
        # random bits do not compress, and zstd would take the cores that train
        handlers = {
            "state": ocp.PyTreeCheckpointHandler(use_compression=False),
            "about": ocp.JsonCheckpointHandler(),
        }
        policy = checkpoint_managers.preservation_policy.LatestN(keep)
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(preservation_policy=policy),
            item_handlers=handlers,
        )

    @property
    def steps(self) -> list[int]:
        """The steps whose checkpoints are complete, in order."""
        found = (p for p in self.folder.iterdir() if p.name.isdigit())
        whole = [p for p in found if all((p / n).is_dir() for n in ("about", "state"))]
        return sorted(int(p.name) for p in whole)

    @property
    def latest(self) -> int | None:
        """The step of the last complete checkpoint; None without any."""
        return max(self.steps, default=None)

    def save(self, state) -> None:
        """Starts to save a state; returns when its arrays are free to be donated.

        Raises:
          SaveError: it, or the checkpoint before it, could not be written.

        Reference: library word.
        """
        step = int(state.step)
        self.wait()
        if step in self.steps:
            return
        leaves = _named(state)
        keys = {n: str(jax.random.key_impl(x)) for n, x in leaves.items() if _is_key(x)}
        leaves |= {n: jax.random.key_data(leaves[n]) for n in keys}
        # orbax refuses arrays of size 0; there is nothing in them to keep
        arrays = {n: x for n, x in leaves.items() if x.size}
        note = self._about | {"state": _shapes(state), "keys": keys, "step": step}
        self._begun = step
        self._guard(
            lambda: self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(arrays), about=ocp.args.JsonSave(note)
                ),
                force=True,
            )
        )

    def wait(self) -> None:
        """Returns when what was saved is complete.

        Raises:
          SaveError: it could not be written.

        Reference: library word.
        """
        self._guard(self._manager.wait_until_finished)

    def check(self) -> None:
        """Raises what `wait` would, if it is known already; does not wait.

        Raises:
          SaveError: a checkpoint could not be written.

        Reference: library word.
        """
        if not self._manager.is_saving_in_progress():
            self.wait()

    def _guard(self, action) -> None:
        """Runs a part of a save; a failure frees its space and becomes a SaveError."""
        try:
            action()
        except Exception as error:
            if jax.process_index() == 0:
                self.sweep()
            kept = "no complete checkpoint yet" if self.latest is None else self.latest
            raise SaveError(
                f"the checkpoint of step {self._begun} could not be written to "
                f"{self.folder}: {_short(error)}. Last complete step: {kept}. Free "
                "space or fix the permissions, then save again or resume from there"
            ) from error

    def sweep(self) -> None:
        """Removes what interrupted saves left behind; not while one is running."""
        for path in self.folder.glob(_TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)

    def read_about(self, step: int | None = None) -> dict:
        """What was saved beside the state of a step, the latest by default.

        Raises:
          ValueError: there is no such complete checkpoint.

        Reference: library word.
        """
        step = self.latest if step is None else step
        there = self.steps
        checks.require(
            step in there,
            f"no complete checkpoint of step {step} in {self.folder}: found {there}",
        )
        args = ocp.args.Composite(about=ocp.args.JsonRestore())
        return self._manager.restore(step, args=args)["about"]

    def restore(self, target, step: int | None = None):
        """The saved state, bit for bit, placed as ``target`` says.

        Args:
          target: a state, or one of `jax.ShapeDtypeStruct`; their shardings may differ
            from those that were saved, for example on another number of devices.
          step: which; None: the latest.

        Returns:
          A state with the structure of ``target``.

        Raises:
          ValueError: there is no such complete checkpoint, or it belongs to another
            recipe, model or data set; the message lists what differs.

        Reference: library word.
        """
        saved = self.read_about(step)
        step = saved["step"]
        self._check(saved, target)
        wanted = {n: _stored(x) for n, x in _named(target).items()}
        arrays = {n: x for n, x in wanted.items() if x.size}
        args = ocp.args.PyTreeRestore(
            arrays, restore_args=ocp.checkpoint_utils.construct_restore_args(arrays)
        )
        found = self._manager.restore(step, args=ocp.args.Composite(state=args))[
            "state"
        ]
        empty = {
            n: jnp.zeros(x.shape, x.dtype) for n, x in wanted.items() if not x.size
        }
        found = {**found, **empty}
        for name, kind in saved["keys"].items():
            found[name] = jax.random.wrap_key_data(found[name], impl=kind)
        leaves = [found[name] for name in _named(target)]
        return jax.tree.unflatten(jax.tree.structure(target), leaves)

    def _check(self, saved: Mapping, target) -> None:
        found = differences(saved, self._about | {"state": _shapes(target)})
        more = [f"... and {len(found) - 12} more"] if len(found) > 12 else []
        checks.require(
            not found,
            f"the checkpoint of step {saved['step']} in {self.folder} belongs to "
            "another run:\n  "
            + "\n  ".join(found[:12] + more)
            + "\nContinue with what "
            "it was started with, or start a new run in another folder",
        )

    def close(self) -> None:
        """Waits for what is being saved, and lets go of the folder.

        Raises:
          SaveError: it could not be written.

        Reference: library word.
        """
        self.wait()
        self._manager.close()


def _short(error: BaseException) -> str:
    """The message without its middle, which is paths: what went wrong stands last."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 300 else f"{text[:80]} ... {text[-200:]}"
