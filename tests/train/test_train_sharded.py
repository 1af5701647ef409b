"""Devices do not matter: a step on a mesh equals the step on one device."""

import jax
import numpy as np
import optax
import pytest
import train_cases as cases

from gpo import train

SGD = optax.sgd(0.1)


def two_steps(mesh):
    step = cases.make_step(mesh=mesh, optimiser=SGD)
    state = cases.fresh(step, reference=cases.params())
    seen = []
    for _ in range(2):
        state, batch, metrics = step.step(state)
        seen.append((np.asarray(batch.tokens), jax.device_get(metrics)))
    return jax.device_get(state.params), seen, state, step


@pytest.fixture(scope="module")
def alone():
    return two_steps(None)


@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 1, 1), (1, 8, 1)])
def test_a_mesh_changes_nothing(alone, shape, tmp_path):
    params, seen, state, step = two_steps(train.make_mesh(*shape))
    for (tokens, metrics), (same, expected) in zip(seen, alone[1], strict=True):
        np.testing.assert_array_equal(tokens, same)
        for name, value in expected.items():
            assert metrics[name] == pytest.approx(value, abs=1e-5), name
    assert cases.furthest(params, alone[0]) < 1e-5
    assert len(state.params["layers"]["mlp"]["up"]["kernel"].sharding.device_set) == 8
    saved = train.Checkpoints(tmp_path, cases.about())
    saved.save(state)
    saved.wait()
    step.step(saved.restore(train.structure(state)))
    assert step.step.compilations() == 1
    saved.close()


def test_parameters_are_split_by_the_rules():
    mesh = train.make_mesh(2, 2, 2)
    placed = train.place(cases.params(), mesh)
    up = placed["layers"]["mlp"]["up"]["kernel"]  # (layers, D, hidden)
    assert up.addressable_shards[0].data.shape == (1, 8, 16)
    norm = placed["norm"]["scale"]
    assert norm.sharding.is_fully_replicated


def test_a_mesh_needs_its_devices():
    with pytest.raises(ValueError, match="3 x 3 x 1 needs 9 devices, found 8"):
        train.make_mesh(3, 3, 1)
