"""Where stream tables are published: tables of lakes, and files of changes."""
