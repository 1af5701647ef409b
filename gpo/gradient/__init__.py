"""Around the optimiser: functions optax optimiser -> optax optimiser."""

from gpo.gradient.ess import after, scale_by_ess

__all__ = ["after", "scale_by_ess"]
