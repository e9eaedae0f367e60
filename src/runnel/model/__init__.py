"""The vocabulary every room may use; imports nothing but the standard library."""
