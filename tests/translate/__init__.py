"""PostgreSQL's expressions in Spark SQL: the same outcome over many values, or no translation."""
