"""Losses, gradients and advantages equal those of polgrad, to 1e-9 in float64."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import pairs

import gpo

GOLDEN = json.loads(pathlib.Path(__file__).with_name("polgrad_golden.json").read_text())


def test_versions_are_recorded():
    assert GOLDEN["versions"]["polgrad"] == "0.2.1"
    assert GOLDEN["losses"].keys() == pairs.RECIPES.keys()


@pytest.mark.parametrize("name", GOLDEN["losses"])
def test_losses_and_gradients(name):
    recipe = pairs.RECIPES[name]
    with jax.enable_x64(True):

        @jax.jit
        def run(logp, batch):
            return jax.value_and_grad(lambda x: pairs.loss(recipe, x, batch))(logp)

        for batch, expected in zip(
            GOLDEN["batches"], GOLDEN["losses"][name], strict=True
        ):
            batch = {k: np.asarray(v) for k, v in batch.items()}
            value, gradient = run(batch["logprobs"], batch)
            assert value.dtype == jnp.float64
            np.testing.assert_allclose(value, expected["loss"], rtol=1e-9)
            expected = np.asarray(expected["gradient"])
            gap = np.linalg.norm(gradient - expected) / np.linalg.norm(expected)
            assert gap < 1e-9


@pytest.mark.parametrize("name", pairs.ADVANTAGES)
def test_advantages(name):
    with jax.enable_x64(True):
        for case in GOLDEN["advantages"]:
            found = gpo.apply(
                pairs.ADVANTAGES[name],
                np.asarray(case["reward"]),
                group=np.asarray(case["group"], np.int32),
            )
            np.testing.assert_allclose(found, case[name], rtol=1e-9, atol=1e-12)
