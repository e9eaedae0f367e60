"""Keeping a lake in shape, beside the refreshes."""
