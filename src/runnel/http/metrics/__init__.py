"""What Prometheus reads: figures of the catalog, refreshes counted as they come, lakes, processes and HTTP itself."""
