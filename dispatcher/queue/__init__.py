"""From a producer to the handler thread: the ways in, room, the log, timers, and the end of each event."""
