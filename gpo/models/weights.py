"""Where each parameter lies in a file, and how a file becomes params."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from gpo import checks
from gpo.models.config import Config
from gpo.models.decoder import decoder

# Module of the decoder -> its name in Hugging Face files and in GGUF files.
_MODULES = {
    "embed": ("model.embed_tokens", "token_embd"),
    "norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
    "layers.attention_norm": ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
    "layers.attention.q": ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    "layers.attention.k": ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    "layers.attention.v": ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    "layers.attention.o": ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
    "layers.attention.q_norm": (
        "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_q_norm",
    ),
    "layers.attention.k_norm": (
        "model.layers.{}.self_attn.k_norm",
        "blk.{}.attn_k_norm",
    ),
    "layers.mlp_norm": (
        "model.layers.{}.post_attention_layernorm",
        "blk.{}.ffn_norm",
    ),
    "layers.mlp.gate": ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
    "layers.mlp.up": ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    "layers.mlp.down": ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
}


class Weight(NamedTuple):
    """One parameter of the decoder and its tensors in a file.

    =======  =========================================================================
    path     ``layers.attention.q.kernel``: place in params
    names    Hugging Face names, one a layer, or just one
    gguf     the same in GGUF files
    shape    of each tensor in the file
    layered  True: the parameter is the stack of its tensors
    kernel   True: the file holds the transpose, (out, in)
    =======  =========================================================================
    """

    path: str
    names: tuple[str, ...]
    gguf: tuple[str, ...]
    shape: tuple[int, ...]
    layered: bool
    kernel: bool


class Checkpoint(NamedTuple):
    """A model file that was opened but not yet read.

    =========  =======================================================================
    source     what to call it in errors
    config     `Config` of the decoder that it holds
    available  names of its tensors
    names      Weight -> names of its tensors in this kind of file
    read       name -> numpy array
    =========  =======================================================================
    """

    source: str
    config: Config
    available: Collection[str]
    names: Callable[[Weight], tuple[str, ...]]
    read: Callable[[str], np.ndarray]


def table(config: Config) -> list[Weight]:
    """All parameters of a decoder with their names and shapes in files."""
    shapes = jax.eval_shape(decoder(config).init, jax.random.key(0))
    flat: dict[str, Any] = traverse_util.flatten_dict(shapes, sep=".")
    return [_weight(path, leaf.shape, config.layers) for path, leaf in flat.items()]


def _weight(path: str, shape: tuple[int, ...], layers: int) -> Weight:
    module, leaf = path.rsplit(".", 1)
    layered, kernel = path.startswith("layers."), leaf == "kernel"
    shape = shape[1:] if layered else shape
    suffix = ".bias" if leaf == "bias" else ".weight"
    each = range(layers) if layered else range(1)
    names, gguf = (
        tuple((name + suffix).format(i) for i in each) for name in _MODULES[module]
    )
    return Weight(path, names, gguf, shape[::-1] if kernel else shape, layered, kernel)


def assemble(checkpoint: Checkpoint) -> Any:
    """Reads all tensors of a checkpoint, one at a time, into params of the decoder.

    Raises:
      ValueError: tensors are missing or have other shapes than the config says.
    """
    weights = table(checkpoint.config)
    wanted = [name for w in weights for name in checkpoint.names(w)]
    missing = [name for name in wanted if name not in checkpoint.available]
    checks.require(
        not missing,
        f"{checkpoint.source} lacks {len(missing)} tensors: {', '.join(missing[:20])}"
        f"{', ...' if len(missing) > 20 else ''}. It has {len(checkpoint.available)}; "
        "check that the config belongs to these weights",
    )
    flat = {w.path: _read(checkpoint, w) for w in weights}
    return traverse_util.unflatten_dict(flat, sep=".")


def _read(checkpoint: Checkpoint, weight: Weight):
    names, dtype = checkpoint.names(weight), checkpoint.config.param_dtype
    shape = weight.shape[::-1] if weight.kernel else weight.shape
    stack = np.empty((len(names), *shape), jnp.dtype(dtype))
    for at, name in enumerate(names):
        tensor = checkpoint.read(name)
        checks.require(
            tensor.shape == weight.shape,
            f"{checkpoint.source}: tensor {name} has shape {tensor.shape}, the config "
            f"asks for {weight.shape}: check that they belong together",
        )
        stack[at] = tensor.T if weight.kernel else tensor
    return jnp.asarray(stack if weight.layered else stack[0])


def tensors(config: Config, params) -> dict[str, np.ndarray]:
    """Params as Hugging Face tensors, name -> numpy array: the inverse of `assemble`."""
    flat = traverse_util.flatten_dict(params, sep=".")
    found = {}
    for w in table(config):
        checks.require(
            w.path in flat,
            f"params lack {w.path!r}; they have {sorted(flat)}: pass params of the "
            "model of this config",
        )
        whole = np.asarray(flat[w.path])
        parts = whole if w.layered else whole[None]
        checks.require(
            len(parts) == len(w.names),
            f"params hold {len(parts)} layers of {w.path!r}, the config has "
            f"{len(w.names)}",
        )
        found |= {
            name: np.ascontiguousarray(part.T if w.kernel else part)
            for name, part in zip(w.names, parts, strict=True)
        }
    return found
