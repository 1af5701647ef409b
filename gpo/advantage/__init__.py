"""(B,) rewards to (B,) or (B, T) advantages."""

from gpo.advantage.context import inter_intra
from gpo.advantage.group import center, mad, rescale_valid, scale, zscore
from gpo.advantage.kl import kl_to_go
from gpo.advantage.shrink import empirical_bayes

__all__ = [
    "center", "empirical_bayes", "inter_intra", "kl_to_go", "mad", "rescale_valid",
    "scale", "zscore",
]  # fmt: skip
