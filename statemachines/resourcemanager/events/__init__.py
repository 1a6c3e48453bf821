"""The events of a resource manager, under YARN's names."""
