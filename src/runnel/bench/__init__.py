"""Known workloads against known answers: TPC-H, Nexmark, and how fast a change travels through many stream tables.

`runnel bench tpch|nexmark|dag` runs them. Each stream table is compared with its query in PostgreSQL after every round
of changes, so a figure in a report is a figure about right results.
"""
