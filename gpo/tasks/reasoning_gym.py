"""Any task of the reasoning-gym package, through one adapter."""

import importlib
from typing import Any

import numpy as np

from gpo import checks
from gpo.tasks import base, text, verifiers

INSTRUCTION = "\nGive the final answer between <answer> and </answer>."


def reasoning_gym(
    name: str,
    tokenizer,
    size: int = 500,
    seed: int = 0,
    *,
    max_prompt: int | None = None,
    instruction: str = INSTRUCTION,
    system: str | None = None,
    workers: int = 2,
    timeout: float = 10.0,
    **config: Any,
) -> base.Task:
    """A procedural reasoning task by name, scored by its own verifier.

    ``r = dataset.score_answer(answer, entry)``, where the answer is what stands in the
    last ``<answer>...</answer>``, or the whole completion where there are no tags.

    Args:
      name: a data set of reasoning-gym, for example ``"chain_sum"``.
      tokenizer: of the model, with a chat template.
      size: N, problems to generate.
      seed: of the generator.
      max_prompt: the longest prompt allowed, in tokens.
      instruction: appended to each question.
      system: a system message.
      workers, timeout: of the verifier (`text.host`).
      **config: settings of the data set.
    Returns:
      A Task with the column ``item`` (N,); rewards lie in [0, 1], partial credit as the
      data set gives it.
    Raises:
      ValueError: an unknown name or setting, a prompt longer than ``max_prompt``, a
        tokenizer without EOS or chat template.
      ImportError: the reasoning-gym package is missing.
    Reference: REASONING GYM: Reasoning Environments for Reinforcement Learning with
      Verifiable Rewards, Stojanovski et al., 2025, arXiv 2505.24760.
    """
    config = {"size": size, "seed": seed, **config}
    entries = _entries(name, config)
    decode = text.decode(tokenizer)
    verifier = verifiers.Gym(name, config)
    return base.make(
        [
            text.chat_prompt(tokenizer, entry["question"] + instruction, system)
            for entry in entries
        ],
        text.host(verifier, entries, decode, workers=workers, timeout=timeout),
        stop=text.stops(tokenizer),
        decode=decode,
        extract=verifiers.tagged,
        columns={"item": np.arange(len(entries), dtype=np.int32)},
        max_length=max_prompt,
    )


def _entries(name: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        gym = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ImportError(
            "this task needs the reasoning-gym package: pip install 'gpo[text]'"
        ) from error
    known = sorted(gym.factory.DATASETS)
    checks.require(
        name in known, f"reasoning-gym has no data set {name!r}; it has {known}"
    )
    try:
        return list(gym.create_dataset(name, **config))
    except (TypeError, AssertionError) as error:
        raise ValueError(
            f"reasoning-gym's {name!r} does not take these settings, received {config}: "
            f"{error}"
        ) from error
