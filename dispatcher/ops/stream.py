"""The stream of /stream: the dispatchers' numbers once a second, and failures as they come."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from dispatcher.ops.dispatchers import failure_of
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.view import DispatcherView
from dispatcher.web.events import event_bytes
from dispatcher.web.plain_answers import to_plain

NUMBERS_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 0.2
MOST_FAILURES: Final = 10
"""In a second, to one client."""


class FailureFeed:
    """The failures of all dispatchers that one client was not sent yet. One loop's thread.

    At most `MOST_FAILURES` a second are sent whole. The others are counted; the count is sent at the end of the second.
    """

    def __init__(self, views: Sequence[DispatcherView], now_s: float) -> None:
        # By dispatcher: the number of the last failure that was sent.
        self._sent: weakref.WeakKeyDictionary[DispatcherView, int] = weakref.WeakKeyDictionary()
        for view in views:
            self._sent[view] = view.last_failure()
        self._second_began_s = now_s
        self._left = MOST_FAILURES
        self._dropped = 0

    def look(self, views: Sequence[DispatcherView], now_s: float, sight: Sight = WHOLE) -> list[dict[str, Any]]:
        """What is to be sent now: failures, oldest first, and `dropped` of the last second."""
        messages: list[dict[str, Any]] = []
        if now_s - self._second_began_s >= 1.0:
            if self._dropped:
                messages.append({"dropped": self._dropped})
            self._second_began_s, self._left, self._dropped = now_s, MOST_FAILURES, 0
        for view in views:
            newest, last = view.last_failure(), self._sent.get(view, 0)
            if newest <= last:
                continue
            self._sent[view] = newest
            # Their texts take long: they are made only where there is room for one.
            new = [record for record in view.failures(last)[::-1] if record.number <= newest] if self._left else []
            shown = new[: self._left]
            self._left -= len(shown)
            self._dropped += newest - last - len(shown)  # also those that the ring no longer has
            messages += [{"dispatcher": view.name, **to_plain(failure_of(record, sight))} for record in shown]
        return messages


async def ops_events(
    views: Callable[[], Sequence[DispatcherView]],
    numbers: Callable[[], Any],
    sight: Callable[[], Sight] = lambda: WHOLE,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] = asyncio.sleep,
) -> AsyncIterator[bytes]:
    """The events of one client, for ever. The data of each `dispatchers` event is what `numbers()` returns."""
    feed = FailureFeed(views(), clock_s())
    due_s = clock_s()
    while True:
        now_s = clock_s()
        if now_s >= due_s:
            due_s = max(due_s + NUMBERS_EVERY_S, now_s)
            yield event_bytes("dispatchers", await numbers())
        for message in feed.look(views(), clock_s(), sight()):
            yield event_bytes("failure", message)
        await sleep(max(0.0, min(LOOK_EVERY_S, due_s - clock_s())))
