"""Batch to Batch after scoring: replay and reuse."""

from gpo.buffer.reuse import reuse

__all__ = ["reuse"]
