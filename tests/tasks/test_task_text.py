"""Tokenizer helpers, and Python verifiers inside the jitted program."""

import functools
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import task_verdicts as verdicts

from gpo import Batch
from gpo.tasks import base, pool, text, verifiers, worker


def decode(ids):
    return "x" * len(ids)


def batch(items, width=6):
    rows = jnp.arange(len(items), dtype=jnp.int32)
    tokens = jnp.zeros((len(items), width), jnp.int32)
    return Batch.of(tokens=tokens, length=rows % width, item=rows)


@pytest.fixture
def score(request):
    """``score(fn, items, ...)``, closed after the test."""

    def make(fn, items, **options):
        made = text.host(fn, items, decode, **options)
        request.addfinalizer(made.close)
        return made

    return make


def test_encode_and_decode(tokenizer):
    ids = text.encode(tokenizer, "<|im_start|>7+5=12<|im_end|>")
    assert len(ids) == 8 and ids[-1] == tokenizer.eos_token_id
    assert text.decode(tokenizer)(np.array(ids)) == "7+5=12"
    digit_texts = tokenizer.convert_ids_to_tokens(text.digits(tokenizer))
    assert sorted(digit_texts) == [*"0123456789"]


def test_chat_prompt(tokenizer):
    ids = text.chat_prompt(tokenizer, "Hi", system="Be brief.")
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    turns = [{"role": "user", "content": "Hi"}]
    assert text.chat_prompt(tokenizer, turns) == text.chat_prompt(tokenizer, "Hi")


def test_tokenizer_errors(make_tokenizer):
    bare = make_tokenizer(eos=None, specials=())
    bare.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        text.chat_prompt(bare, "Hi")
    with pytest.raises(ValueError, match="no EOS"):
        text.stops(bare)
    with pytest.raises(ValueError, match="no token '</s>'"):
        text.stops(bare, "</s>")
    assert text.stops(bare, "a") == (bare.get_vocab()["a"],)


def test_stops_adds_turn_ends(make_tokenizer):
    both = make_tokenizer(
        eos="<|endoftext|>", specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    )
    names = both.convert_ids_to_tokens(text.stops(both))
    assert names == ["<|endoftext|>", "<|im_end|>"]


def test_host_under_sharded_jit(score):
    """Every failure costs one row, on eight devices, call after call."""
    items = ["fine", "raise", "hang", "nan", "exit", "die", "fine", "fine"]
    made = score(verdicts.verdict, items, timeout=2.0)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.device_put(batch(items), rows)
    scored = jax.jit(lambda b: made(b) * 2)
    for _ in range(2):
        got = np.asarray(scored(whole))
        assert np.isnan(got).tolist() == [i != "fine" for i in items]
        assert got[[0, 6, 7]].tolist() == [0, 0, 2]
    counts = {"raised": 4, "timeout": 2, "non-finite": 2, "died": 2}
    assert made.errors.counts == counts
    assert "RuntimeError: no verdict (item 1, completion 'x')" in str(made.errors)
    assert len(made.errors.recent) == 8


def test_host_takes_large_batches_on_many_devices(score):
    """256 kB of tokens: JAX alone would wait for its own threads for ever."""
    made = score(verdicts.verdict, [""] * 512)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.device_put(batch([""] * 512, 128), rows)

    @jax.jit
    def step(b):
        reward = made(b)
        return reward, (b.tokens.astype(jnp.float32) * reward[:, None]).sum()

    reward, _ = step(whole)
    assert reward.tolist() == [i % 128 for i in range(512)]


def test_dead_rows_are_not_scored(score):
    made = score(verdicts.verdict, ["fine", "raise"])
    got = jax.jit(made)(batch(["fine", "raise"]).replace(live=jnp.array([True, False])))
    assert np.isnan(got).tolist() == [False, True]
    assert not made.errors.counts


def test_several_rewards(score):
    items = ["", "x"]
    made = score(verdicts.pair, items, rewards=2)
    assert jax.jit(made)(batch(items)).tolist() == [[0.5, 1], [0.5, 1]]
    wrong = score(verdicts.pair, items)
    assert np.isnan(wrong(batch(items))).all()
    assert "expected shape ()" in wrong.errors.recent[0].message


def test_killed_workers_are_replaced(score):
    made = score(verdicts.process, [0] * 3, workers=1)
    first = np.asarray(made(batch([0] * 3)))
    assert len(set(first)) == 1 and first[0] != os.getpid()
    os.kill(int(first[0]), signal.SIGKILL)
    time.sleep(0.3)
    second = np.asarray(made(batch([0] * 3)))
    assert np.isfinite(second).all() and second[0] != first[0]
    made.close()
    assert np.isfinite(made(batch([0] * 3))).all()


def test_workers_import_no_jax(score, tmp_path):
    made = score(verdicts.imports_jax, [0])
    assert made(batch([0])).tolist() == [0]
    # the library's own verifiers come without the library
    setup = tmp_path / "setup"
    setup.write_bytes(pickle.dumps(pool.setup(verifiers.same_number)))
    code = (
        f"import pickle, sys; sys.path.insert(0, {os.path.dirname(worker.__file__)!r});"
        f"import worker; fn = worker.load(pickle.load(open({str(setup)!r}, 'rb')));"
        "print('jax' in sys.modules, fn('so 4', '4'))"
    )
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], check=False, capture_output=True
    )
    assert out.stdout.split() == [b"False", b"1.0"], out.stderr


def test_verifiers_that_cannot_be_sent(score):
    for fn in (lambda text, item: 0.0, functools.partial(lambda t, i: 0.0)):
        with pytest.raises(ValueError, match="top level of a module.*workers=0"):
            score(fn, [0])
        assert score(fn, [0], workers=0)(batch([0])).tolist() == [0]
    with pytest.raises(ValueError, match="item 1 of the verifier cannot be pickled"):
        score(verdicts.verdict, [0, lambda: 0])
    with pytest.raises(ValueError, match="timeout must be positive"):
        score(verdicts.verdict, [0], timeout=0)
    with pytest.raises(ValueError, match="workers must lie in"):
        score(verdicts.verdict, [0], workers=-1)


def test_workers_that_do_not_start(score):
    made = score(verdicts.Unloadable(), [0] * 3)
    assert np.isnan(made(batch([0] * 3))).all()
    assert made.errors.counts == {"start": 3}
    assert "invalid literal" in str(made.errors)


def test_inside_this_process(score):
    items = ["fine", "raise", "hang", "nan", "exit"]
    made = score(verdicts.verdict, items, workers=0, timeout=0.5)
    got = np.asarray(jax.jit(made)(batch(items)))
    assert got[0] == 0 and np.isnan(got[1:]).all()
    assert made.errors.counts == {"raised": 2, "timeout": 1, "non-finite": 1}


def test_missing_item_column(score):
    made = score(verdicts.verdict, ["fine"])
    with pytest.raises(ValueError, match="no column 'item'"):
        made(
            Batch.of(tokens=jnp.zeros((1, 1), jnp.int32), length=jnp.ones(1, jnp.int32))
        )


def test_fingerprint_includes_items(score):
    def prints(items):
        made = score(verdicts.verdict, items)
        return base.fingerprint(base.make([[1]], made, stop=(2,), decode=decode))

    assert prints(["a"]) == prints(["a"]) != prints(["b"])


SCRIPT = """
import os, sys, time
import jax.numpy as jnp
from gpo import Batch
from gpo.tasks import text

def verdict(completion, item):
    if item == "hang":
        time.sleep(600)
    return os.getpid()

def decode(ids):
    return ""

if __name__ == "__main__":
    items = ["fine", sys.argv[1]]
    score = text.host(verdict, items, decode, workers=2, timeout=600)
    batch = Batch.of(tokens=jnp.zeros((1, 1), jnp.int32), length=jnp.ones(1, jnp.int32))
    print(int(score(batch.replace(item=jnp.array([0])))[0]), flush=True)
    score(batch.replace(item=jnp.array([1])))
"""


@pytest.fixture
def script(tmp_path):
    """Starts a program whose verifier lives in the program itself."""
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    folders = [str(pathlib.Path(text.__file__).parents[2]), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "XLA_FLAGS": ""}

    def start(mode):
        command = [sys.executable, str(path), mode]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=env)

    return start


def gone(pid):
    """Waits until a process has ended."""
    for _ in range(100):
        stat = pathlib.Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split(") ")[1][0] == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not os.path.exists("/proc"), reason="looks processes up in /proc")
def test_workers_end_with_the_program(script):
    program = script("fine")
    pid = int(program.stdout.readline())
    assert pid != program.pid
    assert program.wait(60) == 0
    assert gone(pid)


@pytest.mark.skipif(not os.path.exists("/proc"), reason="looks processes up in /proc")
def test_workers_end_when_the_program_is_killed(script):
    program = script("hang")
    pid = int(program.stdout.readline())
    time.sleep(0.5)
    program.kill()
    program.wait(60)
    assert gone(pid)


def test_interactive_verifiers_are_refused(monkeypatch):
    import __main__

    def local(text, item):
        return 0.0

    local.__module__, local.__qualname__ = "__main__", "local"
    monkeypatch.setattr(__main__, "local", local, raising=False)
    monkeypatch.setattr(__main__, "__spec__", None, raising=False)
    monkeypatch.delattr(__main__, "__file__", raising=False)
    with pytest.raises(ValueError, match="interactive session"):
        pool.setup(local)
