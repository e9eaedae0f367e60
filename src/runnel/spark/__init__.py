"""DELTA -> DATAFRAMES: sessions, evaluation of join trees, and the reads that run inside tasks."""
