"""Tables of PostgreSQL, with changes captured by triggers."""
