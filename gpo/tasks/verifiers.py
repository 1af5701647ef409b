"""Verifiers that run in worker processes: the standard library only, so that a worker
starts in milliseconds."""

import fractions
import functools
import importlib
import re

_PLAIN = (
    (re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}"), r"\1/\2"),
    (re.compile(r"\{,\}|\\,(?=\d{3})"), ","),
    (re.compile(r"\\(?=[$%])"), ""),
    (re.compile("[−–](?=[$€£]?\\d)"), "-"),
)
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])(?P<sign>-?[$€£]?-?))?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))"
    r"(?P<part>\.\d+)?"
    r"(?:/(?P<under>\d*[1-9]\d*)(?![\d/]))?"
)


def numbers(text: str) -> list[fractions.Fraction]:
    """All numbers of a text, in order and exactly: signs, thousands, decimals,
    fractions; currencies, percent signs and units around them are ignored.

    Example:
      >>> numbers("from $-1,250.50 to 3/4 of 20%, 10-7")
      [Fraction(-2501, 2), Fraction(3, 4), Fraction(20, 1), Fraction(10, 1), Fraction(7, 1)]

    Reference: library word.
    """
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    return [_value(found) for found in _NUMBER.finditer(text)]


def _value(found: re.Match) -> fractions.Fraction:
    digits = found["whole"].replace(",", "") + (found["part"] or "")
    value = fractions.Fraction(digits) / int(found["under"] or 1)
    return -value if "-" in (found["sign"] or "") else value


def _boxed(text: str) -> str | None:
    """What the last ``\\boxed{...}`` holds, braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return text[start:]


def final_number(text: str) -> fractions.Fraction | None:
    """The number that a solution arrives at.

    It is looked for in the last ``\\boxed{...}`` (behind an equals sign, if any), else
    after the last ``####``, else it is the last number of the text.

    Args:
      text: a completion.
    Returns:
      The number, or None.
    Example:
      >>> final_number("So 3 + 4 = 7.\\n#### 7 apples, not 8")
      Fraction(7, 1)

    Reference: library word; the mark is that of GSM8K's own solutions.
    """
    boxed = _boxed(text)
    if boxed is not None:
        return _first(numbers(boxed.rpartition("=")[2]))
    if "####" in text:
        return _first(numbers(text.rpartition("####")[2]))
    return _first(numbers(text)[::-1])


def _first(found: list) -> fractions.Fraction | None:
    return found[0] if found else None


def same_number(completion: str, answer: str) -> float:
    """1.0 where the completion arrives at the number ``answer``, else 0.0.

    Example:
      >>> same_number("That makes $1,450.00 in all.", "1450")
      1.0

    Reference: library word.
    """
    return float(final_number(completion) == _first(numbers(answer)))


def tagged(completion: str) -> str:
    """What stands in the last ``<answer>...</answer>``; without tags, all of the text.

    Example:
      >>> tagged("<think>so</think> <answer> 42 </answer>")
      '42'

    Reference: library word; the tags are those of reasoning-gym's prompts.
    """
    found = re.findall(r"<answer>(.*?)</answer>", completion, flags=re.DOTALL)
    return (found[-1] if found else completion).strip()


class Gym:
    """Scores with ``reasoning_gym.create_dataset(name, **config).score_answer``.

    The data set is created in the process that scores: only its name, its
    configuration and the entries travel.
    """

    def __init__(self, name: str, config: dict):
        self.name, self.config = name, config

    @functools.cached_property
    def _dataset(self):
        gym = importlib.import_module("reasoning_gym")
        return gym.create_dataset(self.name, **self.config)

    def __call__(self, completion: str, entry: dict) -> float:
        return self._dataset.score_answer(tagged(completion), entry=entry)
