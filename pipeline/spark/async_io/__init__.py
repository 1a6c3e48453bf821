"""Async I/O and lookup joins inside Spark tasks."""
