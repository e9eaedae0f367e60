"""What a refresh asks of a source and of a sink: protocols and the plain data that passes through them."""
