"""The README's tour runs as it stands."""

import pathlib
import re
import runpy

import jax.numpy as jnp

import gpo

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_tour(tmp_path):
    tour = re.search(r"## Tour.*?```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert tour is not None and len(tour[1].splitlines()) < 40
    file = tmp_path / "tour.py"
    file.write_text(tour[1])
    names = runpy.run_path(str(file))
    assert abs(float(names["loss"])) < 1e-6
    credit = gpo.apply(names["mine"].advantage, [1.0, 0.0, 3.0], group=[0, 0, 0])
    expected = jnp.array([-1, -1, 2]) / 3
    assert jnp.allclose(credit, expected)
