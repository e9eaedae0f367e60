"""What a refresh changed, as lake snapshots: the sinks of stream tables."""
