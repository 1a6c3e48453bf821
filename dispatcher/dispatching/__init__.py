"""From the queue to the handlers: batches, progress, times, errors and draining."""
