"""The adapter to reasoning-gym."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from gpo import Batch
from gpo.tasks import base, reasoning_gym, text

installed = importlib.util.find_spec("reasoning_gym") is not None
needs_package = pytest.mark.skipif(not installed, reason="needs reasoning-gym")


@needs_package
def test_chain_sum(tokenizer, request):
    task = reasoning_gym.reasoning_gym(
        "chain_sum", tokenizer, size=4, seed=7, min_terms=2, max_terms=2
    )
    request.addfinalizer(task.score.close)
    entries = task.score.items
    shown = tokenizer.decode(task.prompts[1, : task.length[1]])
    assert entries[1]["question"] + reasoning_gym.INSTRUCTION in shown
    answers = [entry["answer"] for entry in entries]
    texts = [answers[0], f"so <answer> {answers[1]} </answer>.", "7000000", ""]
    tokens, length = base.pad([text.encode(tokenizer, t) for t in texts], 40)
    batch = Batch.of(
        tokens=jnp.asarray(tokens),
        length=jnp.asarray(length),
        item=jnp.asarray(task.columns["item"]),
    )
    assert jax.jit(task.score)(batch).tolist() == [1, 1, 0, 0]
    again = reasoning_gym.reasoning_gym(
        "chain_sum", tokenizer, size=4, seed=7, min_terms=2, max_terms=2
    )
    assert base.fingerprint(again) == base.fingerprint(task)
    assert task.extract("<answer>3</answer>") == "3"


@needs_package
def test_errors(tokenizer):
    with pytest.raises(ValueError, match="no data set 'chainsum'.*'chain_sum'"):
        reasoning_gym.reasoning_gym("chainsum", tokenizer)
    with pytest.raises(ValueError, match="does not take these settings.*terms"):
        reasoning_gym.reasoning_gym("chain_sum", tokenizer, terms=3)
    with pytest.raises(ValueError, match="does not take these settings"):
        reasoning_gym.reasoning_gym("chain_sum", tokenizer, min_terms=-1)
    with pytest.raises(ValueError, match="limit of 10"):
        reasoning_gym.reasoning_gym("chain_sum", tokenizer, size=2, max_prompt=10)


@pytest.mark.skipif(installed, reason="reasoning-gym is installed")
def test_without_the_package(tokenizer):
    with pytest.raises(ImportError, match=r"gpo\[text\]"):
        reasoning_gym.reasoning_gym("chain_sum", tokenizer)
