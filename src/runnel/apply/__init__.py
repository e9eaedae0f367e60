"""DATAFRAMES -> POSTGRESQL: loading, state merge, result rows, change log."""
