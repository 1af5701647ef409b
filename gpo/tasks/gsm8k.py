"""GSM8K: grade-school word problems, answered in free text."""

import importlib
import json
import pathlib
from collections.abc import Iterable

import numpy as np

from gpo import checks
from gpo.tasks import base, text, verifiers

INSTRUCTION = "\nThink step by step, and end with the answer as: #### number"


def read(path: str | pathlib.Path, split: str = "train") -> list[dict[str, str]]:
    """Rows of a JSONL file, each with ``question`` and ``answer``.

    Args:
      path: a file, or a folder that holds ``<split>.jsonl``.
      split: which file of a folder.
    Returns:
      One dict a line; blank lines are skipped.
    Raises:
      ValueError: no such file, or a line is no JSON or lacks a field; the error names
        file and line.
    Reference: Training Verifiers to Solve Math Word Problems, Cobbe et al., 2021, arXiv
      2110.14168 (its data files).
    """
    path = pathlib.Path(path)
    path = path / f"{split}.jsonl" if path.is_dir() else path
    checks.require(
        path.is_file(),
        f"no file {str(path)!r}: pass the path of a JSONL file with the fields "
        "'question' and 'answer', or path=None to load it with the datasets package",
    )
    with path.open(encoding="utf-8") as lines:
        return [
            _row(line, f"{path}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]


def _row(line: str, place: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{place}: not JSON ({error}), received {line[:80]!r}"
        ) from error
    checks.require(
        isinstance(row, dict) and {"question", "answer"} <= row.keys(),
        f"{place}: a row needs the fields 'question' and 'answer', received {row!r:.200}",
    )
    return row


def _download(split: str) -> Iterable[dict[str, str]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ImportError(
            "gsm8k without a path needs the datasets package: pip install 'gpo[text]', "
            "or pass the path of a JSONL file"
        ) from error
    return datasets.load_dataset("openai/gsm8k", "main", split=split)


def _gold(row: dict[str, str], index: int) -> str:
    """The reference answer, which stands behind ``####``."""
    gold = row["answer"].rpartition("####")[2].strip()
    checks.require(
        len(verifiers.numbers(gold)) > 0,
        f"the answer of row {index} holds no number, received {row['answer'][-80:]!r}: "
        "GSM8K answers end in '#### number'",
    )
    return gold


def answer(completion: str) -> str | None:
    """The number that a completion arrives at, in one spelling, for maj@k.

    Example:
      >>> answer("It costs $1,250.50.") == answer("#### 1250.5")
      True

    Reference: library word.
    """
    number = verifiers.final_number(completion)
    return None if number is None else str(number)


def gsm8k(
    tokenizer,
    path: str | pathlib.Path | None = None,
    split: str = "train",
    *,
    n: int | None = None,
    max_prompt: int | None = None,
    drop_long: bool = False,
    instruction: str = INSTRUCTION,
    system: str | None = None,
    workers: int = 2,
    timeout: float = 5.0,
) -> base.Task:
    """GSM8K as a task: the tokenizer's chat template, scored 1 for the right number.

    A completion's number is looked for in ``\\boxed{...}``, behind ``####``, or is the
    last one of the text (`verifiers.final_number`); numbers are compared exactly,
    whatever their commas, decimals, currencies and units.

    Args:
      tokenizer: of the model, with a chat template.
      path: a JSONL file, or a folder with ``train.jsonl`` and ``test.jsonl``; None:
        ``openai/gsm8k`` through the datasets package.
      split: ``train`` or ``test``.
      n: the first n problems only.
      max_prompt: the longest prompt allowed, in tokens.
      drop_long: leave longer prompts out instead of raising.
      instruction: appended to each question.
      system: a system message.
      workers, timeout: of the verifier (`text.host`).
    Returns:
      A Task with the column ``item`` (N,).
    Raises:
      ValueError: an unreadable file, an empty data set, a prompt longer than
        ``max_prompt``, a tokenizer without EOS or chat template.
      ImportError: ``path`` is None and the datasets package is missing.
    Reference: Training Verifiers to Solve Math Word Problems, Cobbe et al., 2021, arXiv
      2110.14168.
    Deviations: the paper trains verifiers; only its data and its answer mark are used.
    """
    rows = [*(_download(split) if path is None else read(path, split))][:n]
    gold = [_gold(row, i) for i, row in enumerate(rows)]
    asked = [
        text.chat_prompt(tokenizer, row["question"] + instruction, system)
        for row in rows
    ]
    if drop_long and max_prompt is not None:
        kept = [i for i, prompt in enumerate(asked) if len(prompt) <= max_prompt]
        asked, gold = [asked[i] for i in kept], [gold[i] for i in kept]
    decode = text.decode(tokenizer)
    return base.make(
        asked,
        text.host(
            verifiers.same_number, gold, decode, workers=workers, timeout=timeout
        ),
        stop=text.stops(tokenizer),
        decode=decode,
        extract=answer,
        columns={"item": np.arange(len(asked), dtype=np.int32)},
        max_length=max_prompt,
    )
