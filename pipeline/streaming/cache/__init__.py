"""Results of calls that outlive the job, in SQLite or PostgreSQL."""
