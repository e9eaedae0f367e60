"""Stream tables as tables of a DuckLake: one snapshot per refresh, in mode merge, append or replace."""
