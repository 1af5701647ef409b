"""Language models as pure functions.

`gpo.models.decoder` is one decoder for Llama, SmolLM2, Qwen2/2.5 and Qwen3 with the
single function ``extend``; `gpo.models.load` reads pretrained weights into it, and
`gpo.models.export` writes them back for `transformers`.
"""

from gpo.models.config import Config, Linear, Llama3, tiny
from gpo.models.decoder import Model
from gpo.models.memory import Memory, fresh, reserve

__all__ = [
    "Config", "Linear", "Llama3", "Memory", "Model", "fresh", "reserve", "tiny",
]  # fmt: skip
