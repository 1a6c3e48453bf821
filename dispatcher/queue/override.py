"""A subclass's own `post`, for posts that bring along more than an event: asks, timers and attempts.

Such a post calls the subclass's `post` with the event. The first `super().post(event)` within that call makes the step
that the post is about: it queues the event with its delivery, its line in the log, or its attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], bool]
"""Queues the event, and returns whether it was accepted."""


class _StepOfThread(threading.local):
    step: Step | None = None  # of the call of a subclass's `post` that this thread is in, until it is made


class PostOverride:
    """The `post` of one dispatcher's class, if a subclass has its own. Any thread."""

    def __init__(self) -> None:
        self.post: Callable[[Any], bool] | None = None  # set by the dispatcher's constructor, then never changes
        self._of_thread = _StepOfThread()

    def run(self, event: Any, step: Step) -> bool:
        """Make the step through the subclass's `post`; False if that did not make it, or the event was refused.

        Raises:
            Exception: raised by the subclass's `post`, or by the step.
        """
        if self.post is None:
            return step(event)
        mine = self._of_thread
        has_made = False

        def once(given: Any) -> bool:
            nonlocal has_made
            has_made, mine.step = True, before
            return step(given)

        before, mine.step = mine.step, once
        try:
            is_accepted = self.post(event)
        finally:
            mine.step = before
        return has_made and bool(is_accepted)

    def take(self) -> Step | None:
        """What `super().post` of the subclass is to do; None: an ordinary post."""
        step, self._of_thread.step = self._of_thread.step, None
        return step
