"""Shared pieces of the model tests: golden files as Hugging Face folders."""

import pathlib

import numpy as np
import pytest
from safetensors import numpy as safetensors

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture
def unpack(tmp_path):
    """``unpack(name) -> (golden arrays, folder that holds the model)``."""

    def make(name: str):
        golden = dict(np.load(GOLDEN / f"{name}.npz"))
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(str(golden["config"]))
        tensors = {
            key.removeprefix("tensor/"): value
            for key, value in golden.items()
            if key.startswith("tensor/")
        }
        safetensors.save_file(tensors, folder / "model.safetensors")
        return golden, folder

    return make
