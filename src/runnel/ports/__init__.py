"""What the engine asks of the world around it: protocols and plain data, no implementation."""
