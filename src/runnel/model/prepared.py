"""How many plans an engine keeps prepared, and how well they serve."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansKept:
    """Of one engine, since it started."""

    plans: int = 0
    """Prepared now."""
    bytes: int = 0
    """What they hold of the driver's memory, at most."""
    refused: int = 0
    """Shapes that are planned each time, because their plans cannot be prepared."""
    used: int = 0
    """How often a refresh found its plan prepared."""
    made: int = 0
    """How often one had to be made."""

    def as_json(self) -> dict[str, int]:
        """For the catalog."""
        return asdict(self)
