"""The services of a resource manager, after YARN's."""
