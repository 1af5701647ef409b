"""The main job on a tiny model: two steps, its resume, and a real Ctrl-C."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import pytest

from experiments import addition
from gpo.train import log

ROOT = pathlib.Path(__file__).parents[2]
TINY = {
    "model": "tiny",
    "task": "gpo.tasks.arithmetic.tiny_addition",
    "task_args": '{"digits": 1, "radix": 4}',
    "recipe": "gpo.recipes.dapo",
    "recipe_args": '{"high": 0.3}',
    "held_out": 4,
    "prompts": 4,
    "rollouts": 4,
    "length": 3,
    "samples": 2,
    "learning_rate": 1e-2,
}


def test_two_steps_and_their_resume(tmp_path, capsys):
    cache = jax.config.jax_compilation_cache_dir
    config = addition.Config(**TINY, folder=str(tmp_path / "run"), steps=2)
    addition.main(config)
    assert "clip(low=0.2, high=0.3)" in capsys.readouterr().out
    config = addition.Config(**TINY, folder=str(tmp_path / "run"), steps=4, resume=True)
    result = addition.main(config)
    shown = capsys.readouterr().out
    assert "going on from step 2" in shown
    assert "before   after" in shown
    assert result["steps"] == 4
    assert set(result["after"]) >= {"greedy", "pass@1", "pass@2", "maj@2"}
    folder = tmp_path / "run"
    assert json.loads((folder / "result.json").read_text()) == result
    rows = log.read(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["kl_ref"] >= -1e-6 for row in rows[1:])
    config = json.loads((folder / "config.json").read_text())["config"]
    assert config["steps"] == 4
    assert jax.config.jax_compilation_cache_dir == cache  # what was chosen stays


def test_a_task_in_text_needs_a_tokenizer(tmp_path):
    config = addition.Config(model="tiny", folder=str(tmp_path / "run"))
    with pytest.raises(ValueError, match="missing a required argument: 'tokenizer'"):
        addition.main(config)


@pytest.mark.slow
def test_ctrl_c_on_the_command_line(tmp_path):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    words = [sys.executable, "-m", "experiments.addition", *words]
    words += ["--folder", str(tmp_path / "run"), "--steps", "100000"]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)
    }
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    shown = ""
    while "rollouts of step 5" not in shown:
        line = process.stdout.readline()
        assert line, shown
        shown += line
    process.send_signal(signal.SIGINT)
    shown += process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert "saved. Go on with:" in shown
    again = shown.strip().splitlines()[-1].strip()
    assert again.startswith("python -m experiments.addition --model=tiny")
    assert again.endswith("--resume")
    done = log.read(tmp_path / "run" / "metrics.jsonl")[-1]["step"]
    assert done < 100_000
    assert not (tmp_path / "run" / "result.json").exists()
    last = [*words[:-1], str(done + 2), "--resume"]
    subprocess.run(last, cwd=ROOT, env=environment, check=True, capture_output=True)
    steps = [row["step"] for row in log.read(tmp_path / "run" / "metrics.jsonl")]
    assert steps == list(range(done + 3))
