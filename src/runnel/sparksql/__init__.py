"""PostgreSQL's expressions as Spark SQL, where both mean exactly the same."""
