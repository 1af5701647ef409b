"""Writes a model as a Hugging Face folder."""

import pathlib
from typing import Any

import transformers
from safetensors import numpy as safetensors

from gpo import checks
from gpo.models import folder as folders
from gpo.models import weights
from gpo.models.decoder import Model


def export(model: Model, params: Any, tokenizer: Any, folder: str | pathlib.Path):
    """Writes a folder that `transformers.AutoModelForCausalLM` and `load` open.

    Args:
      model: of which the config is written.
      params: its parameters; bfloat16 stays bfloat16.
      tokenizer: of `transformers`, or None to leave it out.
      folder: made where it does not exist; files of the same names are replaced.
    Returns:
      The folder's path.
    Raises:
      ValueError: params do not fit the model, or no family of `transformers` has this
        config.
    Reference: library word.
    """
    path = pathlib.Path(folder)
    names = ("bos", "eos", "pad")
    ids = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id", None) for n in names}
    tensors = weights.tensors(model.config, params)
    kinds = {str(t.dtype) for t in tensors.values()}
    checks.require(
        len(kinds) == 1, f"params must have one dtype, received {sorted(kinds)}"
    )
    config = model.config.replace(param_dtype=kinds.pop())
    known = folders.to_transformers(config, **ids)
    path.mkdir(parents=True, exist_ok=True)
    known.save_pretrained(path)
    safetensors.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    transformers.GenerationConfig(**ids).save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path
