"""A refresh's delta as a file of its own."""
