"""Writing a lake: Parquet files with exact statistics, and the snapshots that show them."""
