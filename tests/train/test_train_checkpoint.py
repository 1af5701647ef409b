"""Checkpoints come back bit for bit, and only to the run they belong to."""

import contextlib
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train_cases as cases

import gpo
from gpo import train
from gpo.models import decoder


def odd_state(step=1):
    """Leaves of every kind that a state may have."""
    key = jax.random.key(7)
    recipe = cases.fake_state().recipe._replace(
        curriculum={"a.b/c": jnp.array([True, False]), "none": None},
        buffer=(jnp.zeros((0, 3)), jnp.arange(3, dtype=jnp.int8), ()),
        behaviour=jax.random.split(key, 3),
        advantage=(jnp.float32(jnp.nan), jnp.float32(-0.0), jnp.uint32(2**32 - 1)),
    )
    params = {
        "x": jax.random.normal(key, (3, 5), jnp.bfloat16),
        "y": {"z": jnp.ones(2)},
    }
    return cases.fake_state(step)._replace(
        params=params, recipe=recipe, reference=jax.tree.map(jnp.copy, params)
    )


def blank(state):
    """The same structure with other values."""
    keyed = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: x if keyed(x) else jnp.zeros_like(x), state)


@contextlib.contextmanager
def full_disk(limit=100_000):
    """Files cannot grow beyond the limit, as on a disk that has no more space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_leaf_comes_back_bit_for_bit(tmp_path):
    saved = train.Checkpoints(tmp_path, cases.about())
    state = odd_state()
    saved.save(state)
    saved.wait()
    found = saved.restore(blank(state))
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert cases.bits(found) == cases.bits(state)
    kinds = [jax.tree.map(jax.typeof, tree) for tree in (state, found)]
    assert kinds[0] == kinds[1]
    saved.close()


def test_another_process_reads_it_from_shapes_alone(tmp_path):
    state = odd_state()
    saved = train.Checkpoints(tmp_path, cases.about())
    saved.save(state)
    saved.close()
    shapes = jax.eval_shape(lambda: odd_state())
    found = train.Checkpoints(tmp_path, cases.about()).restore(shapes)
    assert cases.bits(found) == cases.bits(state)


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    state = cases.fake_state(1, size=1_000_000)
    want = np.array(state.params["w"])
    move = jax.jit(
        lambda s: s._replace(params=jax.tree.map(lambda x: x * 2 + 1, s.params)),
        donate_argnums=0,
    )
    saved = train.Checkpoints(tmp_path, cases.about())
    saved.save(state)
    state = move(move(state))
    saved.wait()
    np.testing.assert_array_equal(saved.restore(state).params["w"], want)
    saved.close()


def test_the_latest_are_kept_and_an_old_one_can_be_read(tmp_path):
    saved = train.Checkpoints(tmp_path, cases.about(), keep=2)
    for step in range(1, 5):
        saved.save(cases.fake_state(step, size=step))
    saved.wait()
    assert (saved.steps, saved.latest) == ([3, 4], 4)
    assert saved.restore(cases.fake_state(0, size=3), step=3).step == 3
    saved.save(cases.fake_state(4, size=4))  # there already: nothing to do
    saved.close()
    with pytest.raises(ValueError, match=r"of step 1 .*found \[3, 4\]"):
        train.Checkpoints(tmp_path, cases.about()).restore(cases.fake_state(), 1)


def test_devices_may_change(tmp_path):
    step = cases.plain()
    state = cases.fresh(step)
    mesh = train.make_mesh(2, 2, 2)
    spread = train.place(state, mesh)
    for name, source, target in (("out", state, spread), ("in", spread, state)):
        saved = train.Checkpoints(tmp_path / name, cases.about())
        saved.save(source)
        saved.wait()
        found = saved.restore(train.structure(target))
        assert cases.bits(found) == cases.bits(state)
        same = jax.tree.map(
            lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim), found, target
        )
        assert all(jax.tree.leaves(same))
        saved.close()


def refused(tmp_path, state=None, **other):
    """The message with which a state is refused."""
    saved = train.Checkpoints(tmp_path, cases.about())
    saved.save(cases.fake_state(1))
    saved.close()
    now = train.Checkpoints(tmp_path, cases.about(**other))
    with pytest.raises(ValueError, match="belongs to another run") as error:
        now.restore(cases.fake_state() if state is None else state)
    now.close()
    return str(error.value)


def test_another_recipe_is_refused(tmp_path):
    message = refused(tmp_path, recipe=gpo.recipes.dapo(high=0.3))
    assert "recipe.weight: saved weight.sequence_mean(), now weight.token_mean()" in (
        message
    )
    assert "high=0.2" in message
    assert "high=0.3" in message
    assert "recipe.advantage" not in message


def test_another_model_is_refused(tmp_path):
    model = decoder.decoder(decoder.tiny(cases.VOCAB, layers=2, dim=16, heads=2))
    assert "model.config.layers: saved 1, now 2" in refused(tmp_path, model=model)
    message = refused(tmp_path / "weights", weights="ab12")
    assert "model.weights: saved nothing, now ab12" in message


def test_other_data_is_refused(tmp_path):
    message = refused(tmp_path, task=cases.make_task(count=13))
    assert "task.prompts: saved 12, now 13" in message
    message = refused(tmp_path / "seed", task=cases.make_task(seed=1))
    assert "task.fingerprint" in message
    assert "task.prompts" not in message


def test_another_state_is_refused(tmp_path):
    state = cases.fake_state(size=5)._replace(opt=(jnp.zeros(2),))
    message = refused(tmp_path, state=state)
    assert "state.params/w: saved float32[4], now float32[5]" in message
    assert "state.opt/0: saved nothing, now float32[2]" in message


def test_settings_may_change(tmp_path):
    saved = train.Checkpoints(tmp_path, cases.about(config={"steps": 3}))
    saved.save(cases.fake_state(1))
    saved.close()
    now = cases.about(config={"steps": 6})
    assert train.Checkpoints(tmp_path, now).restore(cases.fake_state()).step == 1
    found = train.checkpoint.differences(saved.read_about(), now, ("config",))
    assert found == ["config.steps: saved 3, now 6"]


def test_nothing_to_restore(tmp_path):
    with pytest.raises(ValueError, match="no complete checkpoint"):
        train.Checkpoints(tmp_path, cases.about()).restore(cases.fake_state())


def test_what_an_interrupted_save_left_is_ignored(tmp_path):
    saved = train.Checkpoints(tmp_path, cases.about())
    saved.save(cases.fake_state(2))
    saved.close()
    (tmp_path / "4.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (tmp_path / "6").mkdir()  # a copy that was cut off
    again = train.Checkpoints(tmp_path, cases.about())
    assert (again.steps, again.latest) == ([2], 2)
    assert again.restore(cases.fake_state()).step == 2
    again.save(cases.fake_state(4))
    again.wait()
    assert again.latest == 4
    again.sweep()
    assert not list(tmp_path.glob("*tmp*"))
    again.close()


def test_a_full_disk_is_told_and_the_last_complete_one_stays(tmp_path):
    saved = train.Checkpoints(tmp_path, cases.about())
    saved.save(cases.fake_state(1))
    saved.wait()
    large = cases.fake_state(2, size=500_000)
    with full_disk(), pytest.raises(train.SaveError) as error:
        saved.save(large)
        saved.wait()
    assert "checkpoint of step 2 could not be written" in str(error.value)
    assert "Last complete step: 1" in str(error.value)
    assert "File too large" in str(error.value)
    assert saved.latest == 1
    assert not list(tmp_path.glob("*tmp*"))  # its space is free again
    saved.save(large)  # the state is still there, and so is the folder
    saved.wait()
    assert cases.bits(saved.restore(large)) == cases.bits(large)
    saved.close()


KILLED = """
    import jax, sys
    sys.path.insert(0, {tests!r})
    import train_cases as cases
    from gpo import train
    saved = train.Checkpoints({folder!r}, cases.about(), keep=3)
    for step in range(1, 1000):
        saved.save(cases.fake_state(step, size=2_000_000))
        print(step, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.004])
def test_a_kill_during_a_save_leaves_the_last_complete_one(tmp_path, delay):
    tests = str(pathlib.Path(__file__).parent)
    code = textwrap.dedent(KILLED).format(tests=tests, folder=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    begun = 0
    while begun < 3:
        begun = int(process.stdout.readline())
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = train.Checkpoints(tmp_path, cases.about(), keep=3)
    assert saved.latest is not None
    assert saved.latest >= begun - 1  # each save waits for the one before
    found = saved.restore(cases.fake_state(size=2_000_000))
    assert found.step == saved.latest
    np.testing.assert_array_equal(found.params["w"], np.arange(2_000_000, dtype="f4"))
    saved.save(cases.fake_state(saved.latest + 1, size=2_000_000))
    saved.close()
