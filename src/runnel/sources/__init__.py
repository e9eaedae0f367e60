"""Where rows and changes come from: one folder per kind of source, and what those have in common that PostgreSQL reads.

`registry` lists the kinds. `statements` is the SQL text of reads, `selects` and `slices` are reads by PostgreSQL, on
the driver and in tasks; `constant` are rows that the query itself spells out.
"""
