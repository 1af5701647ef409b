"""Plan to Plan: hints, exemplars, drafts and views, before sampling."""

from gpo.context.hints import hints

__all__ = ["hints"]
