"""Stream tables kept in files: read, compared with a database, brought there, and written back."""
