"""From the queue to the handlers: batches, what is in hand, times, errors, and what is done when nothing is queued."""
