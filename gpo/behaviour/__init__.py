"""params to params, before sampling."""

from gpo.behaviour.parameters import delay, perturb

__all__ = ["delay", "perturb"]
