"""Hugging Face folders: config.json to `Config` and back, and lazy safetensors."""

import functools
import json
import pathlib
from typing import Any

import safetensors
import transformers

from gpo import checks
from gpo.models import config as configs
from gpo.models import weights

_FAMILIES = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


def open_folder(path: pathlib.Path, dtype: str) -> weights.Checkpoint:
    """Opens a Hugging Face folder; tensors are read one at a time, when asked for.

    Raises:
      ValueError: no config.json, no safetensors, or a model that the decoder is not.
    """
    config = read_config(path).replace(dtype=dtype, param_dtype=dtype)
    files = _files(path)
    opened = functools.cache(lambda name: safetensors.safe_open(path / name, "numpy"))
    return weights.Checkpoint(
        source=str(path),
        config=config,
        available=files.keys(),
        names=lambda weight: weight.names,
        read=lambda name: opened(files[name]).get_tensor(name),
    )


def _files(path: pathlib.Path) -> dict[str, str]:
    """Tensor name -> file name, from the index of a sharded model or the one file."""
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if index.exists():
        return json.loads(index.read_text())["weight_map"]
    checks.require(
        single.exists(),
        f"{path} has no model.safetensors and no model.safetensors.index.json, but "
        f"{sorted(p.name for p in path.iterdir())}: save the model as safetensors",
    )
    with safetensors.safe_open(single, "numpy") as file:
        return dict.fromkeys(file.keys(), single.name)


def read_config(path: pathlib.Path) -> configs.Config:
    """config.json of a folder as a `Config`.

    Raises:
      ValueError: no config.json; a model_type, an activation, a rotary variant or an
        attention window that the decoder does not have.
    """
    file = path / "config.json"
    checks.require(file.exists(), f"{path} has no config.json: not a model folder")
    family = json.loads(file.read_text()).get("model_type")
    check_family(family, str(file))
    known = _FAMILIES[family].from_pretrained(path)
    return from_transformers(known, str(file))


def check_family(family: Any, source: str) -> None:
    """Raises a ValueError that names the supported families, for any other."""
    checks.require(
        family in _FAMILIES,
        f"{source} is of the family {family!r}; supported are {sorted(_FAMILIES)} "
        "(SmolLM2 is 'llama', Qwen2.5 is 'qwen2')",
    )


def from_transformers(known: Any, source: str) -> configs.Config:
    """A `Config` from a configuration object of `transformers`."""
    checks.require(
        known.hidden_act == "silu",
        f"{source}: hidden_act is {known.hidden_act!r}, the decoder has 'silu'",
    )
    kinds = set(getattr(known, "layer_types", None) or ("full_attention",))
    checks.require(
        kinds == {"full_attention"},
        f"{source}: layer_types are {sorted(kinds)}, the decoder has 'full_attention' "
        "only: set use_sliding_window to false if prompts stay within the window",
    )
    family, bias = known.model_type, getattr(known, "attention_bias", False)
    head_dim = getattr(known, "head_dim", None)
    return configs.Config(
        vocab=known.vocab_size,
        layers=known.num_hidden_layers,
        dim=known.hidden_size,
        heads=known.num_attention_heads,
        kv_heads=known.num_key_value_heads,
        head_dim=head_dim or known.hidden_size // known.num_attention_heads,
        hidden=known.intermediate_size,
        rope_theta=float(known.rope_parameters["rope_theta"]),
        rope_scaling=_scaling(known.rope_parameters, source),
        norm_eps=known.rms_norm_eps,
        qkv_bias=family == "qwen2" or bias,
        o_bias=family != "qwen2" and bias,
        mlp_bias=getattr(known, "mlp_bias", False),
        qk_norm=family == "qwen3",
        tied=known.tie_word_embeddings,
        context=known.max_position_embeddings,
    )


def _scaling(rope: dict, source: str):
    kind = rope.get("rope_type", "default")
    made = {
        "default": lambda: None,
        "linear": lambda: configs.Linear(rope["factor"]),
        "llama3": lambda: configs.Llama3(
            rope["factor"],
            rope["low_freq_factor"],
            rope["high_freq_factor"],
            rope["original_max_position_embeddings"],
        ),
    }
    checks.require(
        kind in made,
        f"{source}: rope_type is {kind!r}, the decoder has {sorted(made)}: remove the "
        "rope scaling from the config if prompts stay within the original context",
    )
    return made[kind]()


def to_transformers(c: configs.Config, **fields) -> Any:
    """The configuration object of `transformers` for a `Config`.

    Args:
      c: the decoder's shape.
      **fields: further fields, such as ``eos_token_id``.
    Raises:
      ValueError: no family has this combination of biases and norms.
    """
    family = "qwen3" if c.qk_norm else "llama"
    if c.qkv_bias and not c.o_bias and not c.qk_norm:
        family = "qwen2"
    made = _FAMILIES[family](
        vocab_size=c.vocab,
        num_hidden_layers=c.layers,
        hidden_size=c.dim,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        intermediate_size=c.hidden,
        max_position_embeddings=c.context,
        rms_norm_eps=c.norm_eps,
        tie_word_embeddings=c.tied,
        dtype=c.param_dtype,
        rope_parameters=_rope(c),
        attention_bias=c.qkv_bias,
        mlp_bias=c.mlp_bias,
        architectures=[_FAMILIES[family].__name__.replace("Config", "ForCausalLM")],
        **fields,
    )
    same = from_transformers(made, "the export")
    same = same.replace(dtype=c.dtype, param_dtype=c.param_dtype)
    checks.require(
        same == c,
        f"no family of {sorted(_FAMILIES)} holds the config {c}; the nearest, "
        f"{family}, reads back as {same}",
    )
    return made


def _rope(c: configs.Config) -> dict:
    base: dict[str, Any] = {"rope_theta": c.rope_theta}
    match c.rope_scaling:
        case configs.Linear(factor):
            return {**base, "rope_type": "linear", "factor": factor}
        case configs.Llama3(factor, low, high, original):
            return {
                **base,
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    return {**base, "rope_type": "default"}
