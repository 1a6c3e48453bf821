"""From a producer to the handler thread: posting, coalescing, room, write-ahead and shutdown."""
