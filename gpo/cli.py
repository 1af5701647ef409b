"""From a dataclass to flags, and from a dotted path to a recipe or a task."""

import difflib
import importlib
import inspect
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import tyro

from gpo import checks
from gpo.models import hub

C = TypeVar("C")


def parse(config: type[C], args: Sequence[str] | None = None) -> C:
    """A dataclass from the command line; a comment on a field is its help.

    Args:
      config: a dataclass whose fields have defaults.
      args: words of the command line; None: those of this process.

    Returns:
      An instance.

    Reference: library word; `tyro.cli`.
    """
    return tyro.cli(config, args=args)


def resolve(path: str) -> Any:
    """What a dotted path names, such as ``gpo.recipes.dapo`` or ``my.module.recipe``.

    Args:
      path: modules, then attributes.

    Returns:
      The object.

    Raises:
      ValueError: there is no such thing; the message lists what is there.

    Example:
      >>> resolve("gpo.recipes.dapo").__name__
      'dapo'

    Reference: library word.
    """
    found, names = _import(path)
    for name in names:
        if not hasattr(found, name):
            raise ValueError(_missing(path, found, name))
        found = getattr(found, name)
    return found


def _import(path: str) -> tuple[Any, list[str]]:
    """The longest prefix of a path that is a module, and the names after it."""
    names = path.split(".")
    for size in range(len(names), 0, -1):
        name = ".".join(names[:size])
        try:
            return importlib.import_module(name), names[size:]
        except ModuleNotFoundError as error:
            # a module that exists and lacks something itself is another error
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    raise ValueError(
        f"there is no module {names[0]!r} for {path!r}: write a dotted path such as "
        "gpo.recipes.dapo; your own modules are found from the folder you are in"
    )


def _missing(path: str, owner: Any, name: str) -> str:
    there = [n for n in getattr(owner, "__all__", dir(owner)) if not n.startswith("_")]
    close = difflib.get_close_matches(name, there, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    where = getattr(owner, "__name__", repr(owner))
    return f"{path!r}: {where} has no {name!r}; it has {', '.join(there)}.{hint}"


def make(path: str, arguments: str = "", **offered) -> Any:
    """Calls what a dotted path names.

    Args:
      path: of a function, for example a recipe.
      arguments: keyword arguments as a JSON object, ``'{"high": 0.3}'``; "": none.
      **offered: what the function gets where it has a parameter of that name
        (``tokenizer=...``) and ``arguments`` do not set it; None is not passed.

    Returns:
      What it returns.

    Raises:
      ValueError: there is no such function, the arguments are no JSON object, or the
        function does not take them.

    Example:
      >>> make("gpo.recipes.grpo", '{"kl": 0.04}').advantage.label.name
      'advantage.zscore'

    Reference: library word.
    """
    fn = resolve(path)
    checks.require(
        callable(fn), f"{path!r} is no function, received a {type(fn).__name__}"
    )
    given = _keywords(path, arguments)
    names = inspect.signature(fn).parameters
    more = {k: v for k, v in offered.items() if v is not None and k in names}
    return _called(path, fn, {**more, **given})


def _keywords(path: str, arguments: str) -> dict[str, Any]:
    found: Any = None
    try:
        found = json.loads(arguments.strip() or "{}")
    except json.JSONDecodeError:
        found = None  # told below, with all else that is no object
    checks.require(
        isinstance(found, dict),
        f"arguments of {path} must be a JSON object such as '{{\"high\": 0.3}}', "
        f"received {arguments!r}",
    )
    return found


def _called(path: str, fn: Callable, keywords: dict[str, Any]) -> Any:
    signature = inspect.signature(fn)
    try:
        signature.bind(**keywords)
    except TypeError as error:
        raise ValueError(
            f"{path}{signature} cannot be called with {sorted(keywords)}: {error}"
        ) from error
    return fn(**keywords)


def cache_programs() -> None:
    """Keeps compiled programs in ``$GPO_CACHE/xla``, or ``~/.cache/gpo/xla``.

    A second run of the same program then starts without compiling. For entry points: a
    cache that was chosen before, or by ``JAX_COMPILATION_CACHE_DIR``, stays.

    Reference: library word; `jax_compilation_cache_dir`.
    """
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", os.fspath(hub.cache() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
