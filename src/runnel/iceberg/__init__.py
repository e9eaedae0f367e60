"""Lakes as Iceberg: the same Parquet files, under metadata that is generated from the catalog when asked for."""
