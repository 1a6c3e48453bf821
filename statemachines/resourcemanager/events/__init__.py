"""The resource manager's events, under YARN's names."""
