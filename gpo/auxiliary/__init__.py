"""Further loss terms: tuples of `gpo.Auxiliary`."""

from gpo.auxiliary.terms import demonstration, distil_to_prompt, entropy_bonus

__all__ = ["demonstration", "distil_to_prompt", "entropy_bonus"]
