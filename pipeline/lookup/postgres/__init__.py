"""PostgreSQL tables as lookup tables."""
