"""One of two processes with two devices each: ``train_host.py index port folder``."""

import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np

index, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, index)

import train_cases as cases

from gpo import train
from gpo.train import hosts

mesh = train.make_mesh(2, 2)
step = cases.make_step(mesh=mesh)


def evaluate(params):
    return train.evaluate(
        cases.MODEL, params, cases.TASK, length=3, samples=2, mesh=mesh,
        key=jax.random.key(1),
    ).summary()  # fmt: skip


for steps in (2, 3):
    state = train.fit(
        step,
        cases.fresh(step),
        steps=steps,
        folder=folder,
        task=cases.TASK,
        about=cases.about(),
        evaluate=evaluate,
        resume=steps > 2,
    )
params = hosts.read(state.params)
assert hosts.any_of(index == 1)
if index == 0:
    np.savez(folder / "params.npz", *jax.tree.leaves(params))
