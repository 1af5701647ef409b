"""Several processes train as one does, save together and resume."""

import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
import train_cases as cases

from gpo.train import log


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    script = str(pathlib.Path(__file__).parent / "train_host.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(index), port, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in (0, 1)
    ]  # fmt: skip
    shown = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(shown)
    assert "going on from step 2" in shown[0]
    assert "step 3/3" in shown[0]
    assert "step" not in shown[1]  # the first process speaks for both
    rows = log.read(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    step = cases.plain()
    state = cases.fresh(step)
    for row in rows[1:]:
        state, _, metrics = step.step(state)
        assert row["reward"] == pytest.approx(float(metrics["reward"]))
    there = np.load(tmp_path / "params.npz")
    for leaf, name in zip(jax.tree.leaves(state.params), there, strict=True):
        np.testing.assert_allclose(leaf, there[name], atol=1e-4)
