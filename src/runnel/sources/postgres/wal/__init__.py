"""Capture from the WAL: a decoder fills the buffers of published tables with what others have committed."""
