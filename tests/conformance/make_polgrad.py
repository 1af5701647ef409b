"""Writes `polgrad_golden.json`: losses, gradients and advantages made by polgrad.

Needs the ``conformance`` extra (torch on CPU, polgrad): run
``python tests/conformance/make_polgrad.py`` after installing it. The suite itself reads
the file and needs neither.
"""

import dataclasses
import json
import pathlib

import numpy
import polgrad
import torch
from polgrad import registry, testing
from polgrad.losses import ClipConfig, policy_loss

TARGET = pathlib.Path(__file__).with_name("polgrad_golden.json")
BUDGET = 16  # tokens in dr_grpo's denominator
SHAPES = ((4, 8), (2, 12))


def losses() -> dict:
    """Names of `pairs.RECIPES` to polgrad configurations without a KL."""
    names = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp")
    found = {n: dataclasses.replace(registry.get(n).loss, kl=None) for n in names}
    found["dr_grpo"] = dataclasses.replace(found["dr_grpo"], norm_len=BUDGET)
    wide = ClipConfig(eps_low=0.2, eps_high=0.2)
    found["gspo_wide"] = dataclasses.replace(found["gspo"], clip=wide)
    return found | {"grpo_kl": registry.get("grpo").loss}


def loss_and_gradient(config, batch) -> dict:
    logp = batch["logprobs"].clone().requires_grad_()
    names = ("old_logprobs", "advantages", "response_mask")
    columns = {n: batch[n] for n in names}
    if config.kl is not None:
        columns["ref_logprobs"] = batch["ref_logprobs"]
    loss = policy_loss(config, logprobs=logp, **columns).loss
    loss.backward()
    return {"loss": loss.item(), "gradient": logp.grad.tolist()}


def advantages() -> list[dict]:
    """Rewards in ragged groups, and what polgrad's estimators make of them."""
    generator = torch.Generator().manual_seed(7)
    group = torch.tensor([0, 1, 0, 2, 2, 1, 0, 2, 1, 0, 2, 2])
    binary = torch.rand(12, generator=generator, dtype=torch.float64) < 0.4
    dense = torch.rand(12, generator=generator, dtype=torch.float64) * 3 - 1
    norm, plus = polgrad.GroupNormConfig, polgrad.ReinforcePPConfig
    cases = []
    for reward in (binary.double(), dense):
        made = {
            "grpo": polgrad.grpo_advantages(reward, group, norm()),
            "dr_grpo": polgrad.grpo_advantages(reward, group, norm(scale="none")),
            "population": polgrad.grpo_advantages(
                reward, group, norm(unbiased=False, eps=1e-6)
            ),
            "rloo": polgrad.rloo_advantages(reward, group),
            "reinforce_pp": polgrad.reinforce_pp_advantages(
                reward, config=plus(batch_norm=True)
            ),
            "reinforce_pp_baseline": polgrad.reinforce_pp_advantages(
                reward, group, config=plus(batch_norm=True)
            ),
        }
        made = {k: v.tolist() for k, v in made.items()}
        cases.append({"reward": reward.tolist(), "group": group.tolist()} | made)
    return cases


def main() -> None:
    batches = list(testing.random_batches(4, SHAPES, seed=0))
    golden = {
        "versions": {
            "polgrad": polgrad.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "batches": [{k: v.tolist() for k, v in b.items()} for b in batches],
        "losses": {
            name: [loss_and_gradient(config, b) for b in batches]
            for name, config in losses().items()
        },
        "advantages": advantages(),
    }
    TARGET.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
