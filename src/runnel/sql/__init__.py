"""TEXT -> PLAN: PostgreSQL resolves and checks the query; this room turns its print into stages."""
