"""polgrad's own conformance test on our losses, where polgrad is installed."""

import dataclasses

import jax
import numpy as np
import pytest
from conformance import pairs

pytest.importorskip(
    "polgrad", reason="needs the conformance extra: pip install 'gpo[conformance]'"
)
import torch
from polgrad import registry, testing
from polgrad.losses import ClipConfig

NAMES = [n for n in pairs.RECIPES if n != "grpo_kl"]  # polgrad strips the KL


def wrapped(recipe):
    """A JAX loss as a torch function that is differentiable in ``logprobs``."""

    @jax.jit
    def run(logp, batch):
        return jax.value_and_grad(lambda x: pairs.loss(recipe, x, batch))(logp)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logprobs, batch):
            with jax.enable_x64(True):
                value, gradient = run(logprobs.detach().numpy(), batch)
            ctx.save_for_backward(torch.from_numpy(np.array(gradient)))
            return torch.tensor(float(value), dtype=torch.float64)

        @staticmethod
        def backward(ctx, upstream):
            (gradient,) = ctx.saved_tensors
            return upstream * gradient, None

    def loss(*, logprobs, **columns):
        batch = {k: v.detach().numpy() for k, v in columns.items()}
        return Loss.apply(logprobs, batch)

    return loss


def reference(name):
    """polgrad's configuration of a name in `pairs.RECIPES`."""
    config = registry.get(name.removesuffix("_wide")).loss
    if name == "dr_grpo":
        return dataclasses.replace(config, norm_len=16)
    if name == "gspo_wide":
        return dataclasses.replace(config, clip=ClipConfig(eps_low=0.2, eps_high=0.2))
    return config


@pytest.mark.parametrize("name", NAMES)
def test_conforms(name):
    report = testing.assert_conforms(wrapped(pairs.RECIPES[name]), reference(name))
    assert report.max_grad_rel_diff < 1e-9
    assert report.n_cases == 64
