"""Tests of stream tables: what must be true of their rows, said in JSON or TOML, and what is found of it."""
