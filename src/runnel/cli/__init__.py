"""The `runnel` command: renders what the client and the engine return, and holds no logic of its own."""
