"""Hidden stages of the same stream table as sources of its later stages."""
