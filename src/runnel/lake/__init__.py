"""DuckLake v1.0, read and written by the format: the catalog in PostgreSQL, Parquet in a folder or an object store."""
