"""The HTTP server of `runnel up`: addresses, tokens, and what is served."""
