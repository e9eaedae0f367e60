"""SQL -> core SQL: a chain of rewrites, each of which keeps the meaning of the query in PostgreSQL."""
