"""Meshes and rules: where parameters and batch columns live."""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpo import checks

ROWS = ("data", "fsdp")
# names end a path in the parameters, and so also in the optimiser's moments
RULES: tuple[tuple[str, P], ...] = (
    (r"embed/embedding$", P("tensor", "fsdp")),
    (r"head/kernel$", P("fsdp", "tensor")),
    (r"(q|k|v|gate|up)/kernel$", P(None, "fsdp", "tensor")),
    (r"(o|down)/kernel$", P(None, "tensor", "fsdp")),
    (r"(q|k|v|gate|up)/bias$", P(None, "tensor")),
)


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """A mesh with axes ``data``, ``fsdp`` and ``tensor`` over the first devices.

    Args:
      data: ways to split rows, parameters replicated.
      fsdp: ways to split both rows and parameters.
      tensor: ways to split heads, hidden units and vocabulary.

    Returns:
      A `jax.sharding.Mesh` with automatic axes.

    Raises:
      ValueError: there are fewer devices than data · fsdp · tensor.

    Reference: `jax.make_mesh`.
    """
    count, have = data * fsdp * tensor, len(jax.devices())
    checks.require(
        count <= have,
        f"a mesh of {data} x {fsdp} x {tensor} needs {count} devices, found {have}",
    )
    return jax.make_mesh(
        (data, fsdp, tensor),
        ("data", "fsdp", "tensor"),
        axis_types=(AxisType.Auto,) * 3,
        devices=jax.devices()[:count],
    )


def path_name(path: Sequence[Any]) -> str:
    """``layers/attention/q/kernel`` for a path of a pytree."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def fit(spec: P, shape: Sequence[int], mesh: Mesh) -> P:
    """The spec without the axes that do not divide their dimension.

    Axes of one device and a trailing None go too: jit returns shardings in this form,
    and a step whose output were placed in another form than its input compiles twice.
    """
    kept = []
    for axes, n in zip(spec, shape, strict=False):
        names = [axes] if isinstance(axes, str) else list(axes or ())
        names = [name for name in names if mesh.shape[name] > 1]
        if not names or n % math.prod(mesh.shape[name] for name in names):
            kept.append(None)
        else:
            kept.append(tuple(names) if len(names) > 1 else names[0])
    while kept and kept[-1] is None:
        kept.pop()
    return P(*kept)


def parameter_shardings(tree, mesh: Mesh, rules=RULES):
    """A `NamedSharding` for each leaf: the first rule whose pattern its name matches,
    replicated without one. Works for parameters and for whatever mirrors their names.
    """

    def rule(path, leaf):
        name = path_name(path)
        found = (spec for pattern, spec in rules if re.search(pattern, name))
        spec = next(found, P())
        # copies stacked in front (delayed parameters) keep the rule of the parameter
        extra = len(leaf.shape) - len(spec)
        if spec and extra > 0 and name.startswith("recipe"):
            spec = P(*(None,) * extra, *spec)
        return NamedSharding(mesh, fit(spec, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(rule, tree)


def place(tree, mesh: Mesh, rules=RULES):
    """Puts a tree (parameters, a `TrainState`) on the mesh by the rules."""
    return put(tree, parameter_shardings(tree, mesh, rules))


def put(tree, shardings):
    """`jax.device_put` that also takes PRNG keys to meshes of several processes."""

    def one(x, sharding):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.device_put(x, sharding)
        placed = key_data(sharding, x.ndim)
        data = jax.device_put(jax.random.key_data(x), placed)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))

    return jax.tree.map(one, tree, shardings)


def key_data(sharding, ndim: int):
    """The sharding of the words of PRNG keys (..., words), in the form jit returns."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    missing = (None,) * (ndim - len(sharding.spec))
    return NamedSharding(sharding.mesh, P(*sharding.spec, *missing, None))


def constrain(tree, mesh: Mesh | None, rules=RULES):
    """Inside jit: keeps a tree on the mesh by the rules. No mesh: unchanged."""
    if mesh is None:
        return tree
    shardings = parameter_shardings(tree, mesh, rules)
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, shardings)


def rows(tree, mesh: Mesh | None):
    """Inside jit: splits the leading axis of every column over ``data`` and ``fsdp``,
    where it divides. No mesh: unchanged."""
    if mesh is None:
        return tree

    def split(x):
        if not x.ndim:
            return x
        spec = fit(P(ROWS), x.shape[:1], mesh)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return jax.tree.map(split, tree)
