"""Shared pieces of the model tests: golden files as Hugging Face folders."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

from gpo.models import decoder as decoders

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture
def unpack(tmp_path):
    """``unpack(name) -> (golden arrays, folder that holds the model)``."""

    def make(name: str):
        golden = dict(np.load(GOLDEN / f"{name}.npz"))
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(str(golden["config"]))
        tensors = {
            key.removeprefix("tensor/"): value
            for key, value in golden.items()
            if key.startswith("tensor/")
        }
        safetensors.save_file(tensors, folder / "model.safetensors")
        return golden, folder

    return make


@pytest.fixture(scope="session")
def random_model():
    """``random_model(config) -> (model, params)``, norms and biases random as well."""

    def make(config: decoders.Config):
        model = decoders.decoder(config)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        draw = np.random.default_rng(0).normal
        leaf = lambda s: jnp.asarray(draw(scale=0.5, size=s.shape), s.dtype)
        return model, jax.tree.map(leaf, shapes)

    return make
