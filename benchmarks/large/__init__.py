"""Large work, above the line between small and large: builds, FULL, large changes, sustained traffic, clusters.

Every part says a ratio to what PostgreSQL or DuckDB take for the same, in the same run, and where its time goes.
"""
