"""Reading leaves: pushed-down SQL, change buffers, and reads narrowed by keys."""
