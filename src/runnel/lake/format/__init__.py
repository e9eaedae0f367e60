"""The words of a lake: its catalog as of a snapshot, types, bounds and statistics."""
