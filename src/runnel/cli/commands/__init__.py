"""One module per group of commands. Heavy imports stay inside the functions, so that --help is fast."""
