"""The catalog: schemas, numbered migrations (SQL), and typed access to the catalog tables.

`migrate` installs and upgrades, `store` reads and writes, `rows` are its rows as dataclasses.
"""
