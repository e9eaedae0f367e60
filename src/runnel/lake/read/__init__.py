"""Reading a lake: which files, which of their rows, what changed between two snapshots."""
