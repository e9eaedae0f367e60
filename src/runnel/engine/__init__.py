"""The one core behind every front: definitions, refreshes, requests, and the loop that drives them."""

from runnel.engine.core import Engine

__all__ = ["Engine"]
