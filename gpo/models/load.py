"""Pretrained models: Hugging Face folders and hub ids, GGUF files, named models."""

import hashlib
import os
import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# the advice to install PyTorch helps no one here: only tokenizers are used
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

import transformers

from gpo import checks
from gpo.models import decoder as decoders
from gpo.models import folder, gguf, hub, weights

NAMED = {"smollm2-135m": hub.SMOLLM2_135M}
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class Loaded(NamedTuple):
    """A pretrained model, ready to use.

    ===========  =====================================================================
    model        `Model`
    params       its parameters
    tokenizer    of `transformers`; None where a folder has none
    name         what was loaded, as the caller wrote it
    fingerprint  of config and weights: equal for equal models wherever they lie
    ===========  =====================================================================
    """

    model: decoders.Model
    params: Any
    tokenizer: Any
    name: str
    fingerprint: str


def load(
    name: str | pathlib.Path, dtype: Any = "float32", eos: str | None = None
) -> Loaded:
    """Loads a pretrained language model with its tokenizer.

    Args:
      name: ``"smollm2-135m"``; a folder with config.json and safetensors; a GGUF file;
        or a hub id such as ``"Qwen/Qwen3-0.6B"``.
      dtype: of parameters and activations, ``"float32"`` or ``"bfloat16"``.
      eos: text of the token that ends an answer, where the tokenizer names none or
        another.
    Returns:
      `Loaded`.
    Raises:
      ValueError: an unknown name or family, tensors missing or of wrong shape, or a
        tokenizer without a token that ends an answer.
    Reference: library word; families in `decoder`.
    """
    path = locate(name)
    single = path.is_file()
    opened = (gguf.open_file if single else folder.open_folder)(path, dtype)
    params = weights.assemble(opened)
    tokenizer = gguf.tokenizer(path) if single else _tokenizer(path)
    if tokenizer is not None:
        _set_eos(tokenizer, eos, str(name))
    model = decoders.decoder(opened.config)
    mark = fingerprint(opened.config, params)
    return Loaded(model, params, tokenizer, str(name), mark)


def locate(name: str | pathlib.Path) -> pathlib.Path:
    """Local folder or GGUF file of a model, fetched where it has to be.

    Raises:
      ValueError: neither a named model, nor a path, nor the form of a hub id.
    """
    path = pathlib.Path(name).expanduser()
    if str(name) in NAMED:
        return hub.fetch(NAMED[str(name)])
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    checks.require(
        bool(_HUB_ID.fullmatch(str(name))) and not path.exists(),
        f"unknown model {str(name)!r}: expected one of {sorted(NAMED)}, a folder with "
        "config.json and safetensors, a .gguf file, or a hub id 'owner/name'",
    )
    return hub.snapshot(str(name))


def fingerprint(config: decoders.Config, params: Any) -> str:
    """16 hex digits that tell models apart: of the config and of every tensor.

    Of each tensor up to 4096 evenly spaced values count, rounded to bfloat16, so that
    the mark is cheap and the same model has one in either precision.
    """
    shape = config.replace(dtype="float32", param_dtype="float32")
    digest = hashlib.sha256(repr(shape).encode())
    for path, tensor in jax.tree_util.tree_leaves_with_path(params):
        stride = max(1, tensor.size // 4096)
        some = jnp.ravel(tensor)[::stride].astype(jnp.bfloat16)
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(some).tobytes())
    return digest.hexdigest()[:16]


def _tokenizer(path: pathlib.Path) -> Any:
    if not (path / "tokenizer_config.json").exists():
        return None
    return transformers.AutoTokenizer.from_pretrained(path)


def _set_eos(tokenizer: Any, eos: str | None, source: str) -> None:
    if eos is not None:
        checks.require(
            eos in tokenizer.get_vocab(),
            f"eos={eos!r} is not a token of {source}",
        )
        tokenizer.eos_token = eos
    checks.require(
        tokenizer.eos_token_id is not None,
        f"the tokenizer of {source} names no token that ends an answer: pass eos=..., "
        f"one of its tokens, for example among {list(tokenizer.all_special_tokens)[:8]}",
    )
