"""One refresh: a transaction that moves one or more stream tables to the same snapshot."""
