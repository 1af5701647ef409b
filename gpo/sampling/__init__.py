"""(B, V) logits to (B, V) logits, at every decoded token."""

from gpo.sampling.logits import greedy, min_p, temperature, top_k, top_p

__all__ = ["greedy", "min_p", "temperature", "top_k", "top_p"]
