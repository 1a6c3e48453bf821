"""The way of an event from a producer to the handler thread."""
