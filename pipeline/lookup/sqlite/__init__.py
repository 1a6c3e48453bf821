"""SQLite files as lookup tables."""
