"""TPC-H: eight tables, 22 queries, and changes of all tables."""
