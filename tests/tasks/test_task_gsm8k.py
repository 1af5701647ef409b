"""GSM8K from JSONL files."""

import importlib.util
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo import Batch
from gpo.tasks import base, gsm8k, text

ROWS = [
    {"question": "One and one?", "answer": "1+1=<<1+1=2>>2\n#### 2"},
    {"question": "A thousand and one?", "answer": "#### 1,001"},
    {"question": "A half of three, in full words and numbers?", "answer": "#### 1.5"},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return tmp_path


def rollouts(tokenizer, task, texts):
    ids = [[*text.encode(tokenizer, t), task.stop[0]] for t in texts]
    tokens, length = base.pad(ids)
    item = jnp.asarray(task.columns["item"])
    return Batch.of(tokens=jnp.asarray(tokens), length=jnp.asarray(length), item=item)


def test_task(tokenizer, folder, request):
    task = gsm8k.gsm8k(tokenizer, folder, "test", system="Be right.")
    request.addfinalizer(task.score.close)
    shown = tokenizer.decode(task.prompts[0, : task.length[0]])
    assert shown.startswith("<|im_start|>system\nBe right.<|im_end|>")
    assert "One and one?\nThink step by step" in shown
    answers = ["#### 2", "It is $1001.00", r"\boxed{3/2}"]
    scored = jax.jit(task.score)
    assert scored(rollouts(tokenizer, task, answers)).tolist() == [1, 1, 1]
    assert scored(rollouts(tokenizer, task, answers[::-1])).tolist() == [0, 1, 0]
    train, held = base.split(task, 1)
    right = [answers[i] for i in train.columns["item"]]
    assert train.score(rollouts(tokenizer, train, right)).tolist() == [1, 1]
    assert train.score is held.score
    assert task.extract(answers[1]) == "1001"


def test_long_prompts(tokenizer, folder):
    path = folder / "test.jsonl"
    limit = max(gsm8k.gsm8k(tokenizer, path).length) - 1
    with pytest.raises(ValueError, match=f"prompt 2 .*limit of {limit}.*{limit + 1}"):
        gsm8k.gsm8k(tokenizer, path, max_prompt=limit)
    kept = gsm8k.gsm8k(tokenizer, path, max_prompt=limit, drop_long=True)
    assert len(kept.length) == 2 and kept.score.items == ["2", "1,001"]
    assert len(gsm8k.gsm8k(tokenizer, path, n=1).length) == 1
    with pytest.raises(ValueError, match="empty data set"):
        gsm8k.gsm8k(tokenizer, path, max_prompt=1, drop_long=True)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: not JSON"),
        ('{"question": "Why?"}', "line 2: a row needs the fields"),
        ('{"question": "Why?", "answer": "#### because"}', "row 1 holds no number"),
    ],
)
def test_bad_files(tokenizer, tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line)
    with pytest.raises(ValueError, match=message):
        gsm8k.gsm8k(tokenizer, path)


def test_missing_files(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="no file .*train.jsonl"):
        gsm8k.gsm8k(tokenizer, tmp_path)
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(ValueError, match="empty data set"):
        gsm8k.gsm8k(tokenizer, tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("datasets") is not None, reason="datasets is installed"
)
def test_without_datasets(tokenizer):
    with pytest.raises(ImportError, match=r"gpo\[text\]"):
        gsm8k.gsm8k(tokenizer)


@pytest.mark.skipif("GPO_GSM8K" not in os.environ, reason="GPO_GSM8K names no folder")
@pytest.mark.parametrize("split", ["train", "test"])
def test_real_data(tokenizer, split, request):
    """The reference solutions score 1, those of the next problem mostly 0."""
    folder = os.environ["GPO_GSM8K"]
    task = gsm8k.gsm8k(tokenizer, folder, split, n=500)
    request.addfinalizer(task.score.close)
    solutions = [row["answer"] for row in gsm8k.read(folder, split)[:500]]
    scored = jax.jit(task.score)
    right = scored(rollouts(tokenizer, task, solutions))
    assert right.min() == 1
    other = scored(rollouts(tokenizer, task, [*solutions[1:], solutions[0]]))
    assert np.mean(other) < 0.1
