"""Async I/O as a column, and as a function of SQL."""
