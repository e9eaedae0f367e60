"""The page at the server's root: what it shows as JSON, what its buttons do, and its files."""
