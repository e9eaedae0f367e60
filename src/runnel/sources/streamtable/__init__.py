"""Stream tables as sources of others, with changes from their logs."""
