"""Contracts that every row of the table keeps, or is excused from with a reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from contracts import sample
from contracts.compiling import EVENTS
from contracts.subject import case

from gpo.batch import Batch

BATCH = sample.batch()


def keeping(contract):
    """Parametrises over the rows that are not excused from a contract."""
    names = [r.name for r in table.TABLE if contract not in r.excused]
    return pytest.mark.parametrize("name", names)


every = keeping("")


def shown(tree):
    """NumPy leaves; a Batch in the order of its row ids."""
    if isinstance(tree, Batch):
        order = jnp.argsort(tree.plan.row)
        pick = order.shape[0]
        tree = jax.tree.map(
            lambda x: x[order] if jnp.ndim(x) and x.shape[0] == pick else x, tree
        )
    return jax.tree.map(np.asarray, tree)


def close(actual, expected, message, where=None):
    """Raises unless two trees agree, at rows and tokens that count."""
    actual, expected = shown(actual), shown(expected)
    assert jax.tree.structure(actual) == jax.tree.structure(expected), message

    def same(a, b):
        if where is not None:
            counts = ~np.asarray(sample.invalid(a, where))
            a, b = np.where(counts, a, 0), np.where(counts, b, 0)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5, err_msg=message)

    jax.tree.map(same, actual, expected)


@every
def test_jit_changes_nothing(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    state = c.subject.init(value, batch)
    eager, after = c.subject.update(value, state, batch, jax.random.key(0))
    jitted = c(value, batch)
    close(jitted.out, eager, name)
    close(jitted.state, after, name)


@keeping("permute")
def test_rows_in_any_order(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    order = jnp.asarray(np.random.default_rng(1).permutation(sample.ROWS))
    moved = c(sample.permute(value, order), sample.permute(batch, order))
    plain = c(value, batch)
    close(moved.out, sample.permute(plain.out, order), name)


@keeping("relabel")
def test_names_of_groups_do_not_matter(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    other = sample.relabel(batch)
    plain, renamed = c(value, batch), c(c.row.value(other), other)
    out = renamed.out
    if isinstance(out, Batch):
        out = out.replace(plan=plain.out.plan)
    close(out, plain.out, name)


@keeping("masked")
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e3])
def test_masked_slots_do_not_matter(name, junk):
    c = case(name)
    value, batch = c.inputs(BATCH)
    junked = sample.corrupt((value, batch), batch, junk)
    plain = c(value, batch)
    # compiled, a product with a mask may be the selection that it should have been
    other = c.unjitted(*junked) if np.isnan(junk) else c(*junked)
    kept = plain.out if isinstance(plain.out, Batch) else batch
    close(other.out, plain.out, name, kept)
    close(other.state, plain.state, name)
    close(other.grad, plain.grad, f"{name}: gradient")
    for g in other.grad:
        outside = np.asarray(sample.invalid(g, batch))
        assert np.all(np.asarray(g)[outside] == 0), f"{name}: gradient of masked slots"


@keeping("removed")
def test_dead_rows_vote_nowhere(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    alive = jnp.asarray(np.flatnonzero(np.asarray(batch.live)))
    fewer, rest = sample.permute((value, batch), alive)
    state = c.subject.init(fewer, rest)
    out, after = c.subject.update(fewer, state, rest, jax.random.key(0))
    plain = c(value, batch)
    close(out, sample.permute(plain.out, alive), name)
    close(after, plain.state, name)


@keeping("edges")
def test_edges_are_finite(name):
    c = case(name)
    for edge, batch in sample.edges(BATCH).items():
        result = c(*c.inputs(batch))
        for leaf in jax.tree.leaves(result):
            assert np.all(np.isfinite(leaf)), (name, edge, leaf)


@pytest.mark.parametrize("edge", ["single", "equal"])
def test_no_signal_is_exactly_zero(edge):
    names = [r.name for r in table.TABLE if edge not in r.excused]
    assert len(names) > 20
    for name in names:
        c = case(name)
        for label, batch in sample.edges(BATCH).items():
            if label.startswith(edge):
                result = c(*c.inputs(batch))
                found = result.grad if name.startswith("recipes") else result.out
                for leaf in jax.tree.leaves(found):
                    assert np.all(np.asarray(leaf) == 0), (name, label, leaf)


def description(tree):
    """Structure, and shape, type and weakness of every leaf."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda t: t, tree))
    return structure, [(x.shape, x.dtype, x.weak_type) for x in leaves]


@every
def test_state_keeps_its_type_and_owns_its_arrays(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    state = c.subject.init(value, batch)
    leaves = [x for x in jax.tree.leaves((state, value)) if x.size]
    pointers = [x.unsafe_buffer_pointer() for x in leaves]
    owned = len(jax.tree.leaves(state))
    assert owned == 0 or len(set(pointers)) == len(pointers), f"{name}: shared arrays"
    _, after = jax.eval_shape(c.subject.update, value, state, batch, jax.random.key(0))
    assert description(state) == description(after), name
    weak = [w for _, _, w in description(state)[1] if w]
    assert not weak, f"{name}: weakly typed state"


@every
def test_second_call_compiles_nothing(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    key = jax.random.key(0)
    first = c(value, batch, key)
    before = len(EVENTS)
    second = c.run(value, first.state, batch, key)
    jax.block_until_ready(second)
    assert len(EVENTS) == before, f"{name} compiled: {EVENTS[before:]}"


def test_the_listener_hears_compilations():
    before = len(EVENTS)
    jax.jit(lambda x: x * 3 + 1)(jnp.ones(3))
    assert len(EVENTS) > before


@every
def test_init_takes_shapes(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    structs = jax.eval_shape(lambda *x: x, value, batch)
    for state in (c.subject.init(*structs), jax.eval_shape(c.subject.init, *structs)):
        expected = jax.eval_shape(lambda: c.subject.init(value, batch))
        assert description(state) == description(expected), name


@every
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_floats_keep_their_type(name, dtype):
    c = case(name)
    inputs = c.inputs(BATCH)
    with jax.enable_x64(dtype == jnp.float64):
        value, batch = sample.cast(inputs, dtype)
        state = c.subject.init(value, batch)
        out, _ = jax.eval_shape(
            c.subject.update, value, state, batch, jax.random.key(0)
        )
    kinds = {x.dtype for x in jax.tree.leaves(out) if x.dtype.kind not in "iub"}
    assert kinds <= {jnp.dtype(dtype)}, name


@every
def test_eight_devices_give_the_same(name):
    c = case(name)
    value, batch = c.inputs(BATCH)
    auto = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((8,), ("data",), axis_types=(auto,))

    def place(x):
        split = jnp.ndim(x) and x.shape[0] == sample.ROWS
        spec = jax.sharding.PartitionSpec("data" if split else None)
        if not jnp.ndim(x):
            spec = jax.sharding.PartitionSpec()
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

    plain = c(value, batch)
    spread = c(*jax.tree.map(place, (value, batch)))
    close(spread.out, plain.out, name)
    close(spread.state, plain.state, name)
    close(spread.grad, plain.grad, f"{name}: gradient")
