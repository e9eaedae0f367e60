"""DuckLake tables as sources: stand-ins, versions, deltas and reads."""
