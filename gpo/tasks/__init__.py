"""Tasks: prompts, and how to score what a policy writes after them.

`base.Task` is the record; `arithmetic` and `countdown` are procedural and scored on the
device; `gsm8k` and `reasoning_gym` are text, scored by Python verifiers through
`text.host`.
"""

from gpo.tasks import arithmetic, base, countdown, gsm8k, reasoning_gym, text
from gpo.tasks.base import Task

__all__ = [
    "Task", "arithmetic", "base", "countdown", "gsm8k", "reasoning_gym", "text",
]  # fmt: skip
