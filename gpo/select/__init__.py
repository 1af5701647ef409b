"""Batch to Batch: which rows reach the learner."""

from gpo.select.rows import drop_pivot, keep_rows

__all__ = ["drop_pivot", "keep_rows"]
