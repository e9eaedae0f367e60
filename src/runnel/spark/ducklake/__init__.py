"""Lake tables on Spark: as DataFrames, with their change feed, and written by tasks."""
