"""Signs that a dispatcher is getting into trouble, before it fails: its queue grows, events of a type fail, or dead
letters are lost.

Posts and handlers count nothing extra. The monitor checks about once a second, whether or not anybody looks, and
compares counters that exist anyway with their values at earlier checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from dispatcher.util.figures import counted, plain_seconds

if TYPE_CHECKING:
    from dispatcher.config import DispatcherConfig
    from dispatcher.routes import Route

QUEUE_GROWS: Final = "queue_grows"
EVENTS_FAIL: Final = "events_fail"
LETTERS_LOST: Final = "letters_lost"
SIGNS: Final = (QUEUE_GROWS, EVENTS_FAIL, LETTERS_LOST)
"""Every name of a sign."""
FAILING_WINDOW_S: Final = 60.0
"""Failures are counted over this window, and a lost dead letter is a sign for this long."""
_SIZES: Final = 12
"""How many sizes of the queue are kept for its window."""
_COUNTS: Final = 12
"""How many counts of each type are kept for their window."""
_TypeKey = tuple[str, str]
_Counts = dict[_TypeKey, tuple[int, int]]


class Sign(NamedTuple):
    """Something that an operator should look at, although the dispatcher works."""

    name: str
    """One of `SIGNS`."""
    detail: str
    event_type: str = ""
    """Whose events fail: class and name."""


class EarlySigns:
    """The signs of one dispatcher. One thread calls `check`, any thread reads `present`; no lock is taken."""

    def __init__(
        self,
        config: DispatcherConfig,
        size: Callable[[], int],
        routes: Callable[[], Iterable[Route]],
        lost: Callable[[], int] = lambda: 0,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """`size()`: of the queue. `routes()`: those that handled events or failed to. `lost()`: lost dead letters."""
        self._config = config  # never changes, like the next four
        self._size = size
        self._routes = routes
        self._lost = lost
        self._clock_ns = clock_ns
        # Each with its time, oldest first:
        self._sizes: deque[tuple[int, int]] = deque()  # the checking thread only
        self._counts: deque[tuple[int, _Counts]] = deque()  # the checking thread only
        self._lost_until_ns: tuple[int, int] = (0, 0)  # letters, and until when; the checking thread only
        self._has_ended = False  # set once, by any thread
        self.present: tuple[Sign, ...] = ()
        """The checking thread replaces it, and any thread the last time. Any thread reads it."""

    def check(self) -> None:
        """Look at the counters. Periodically, on one thread."""
        now_ns = self._clock_ns()
        self.present = (*self._growing(now_ns), *self._failing(now_ns), *self._losing(now_ns))
        if self._has_ended:  # `clear` came in between
            self.present = ()

    def clear(self) -> None:
        """Show no signs from now on, because the dispatcher stops. Any thread; a check may still be running."""
        self._has_ended = True  # before the signs go: `check` shows its own and then looks at this
        self.present = ()

    def _growing(self, now_ns: int) -> list[Sign]:
        """The window has three parts. The queue grows if its maximum in each part is below its minimum in the next.

        So neither a burst that is being worked off nor the ups and downs of a busy queue count.
        """
        window_s, least = self._config.queue_grows_warn_s, self._config.queue_grows_warn_from
        if window_s is None:
            return []
        size, window_ns = self._size(), int(window_s * 1e9)
        sizes = self._sizes
        if sizes and now_ns - sizes[-1][0] < window_ns // _SIZES:
            return [each for each in self.present if each.name == QUEUE_GROWS]
        sizes.append((now_ns, size))
        while len(sizes) > 1 and now_ns - sizes[1][0] >= window_ns:
            sizes.popleft()
        begin_ns = sizes[0][0]
        if size < least or now_ns - begin_ns < window_ns:
            return []
        parts: tuple[list[int], ...] = ([], [], [])
        for at_ns, each in sizes:
            parts[min(2, 3 * (at_ns - begin_ns) // (now_ns - begin_ns))].append(each)
        first, second, third = parts
        if not (second and max(first) < min(second) and max(second) < min(third)):
            return []
        took = plain_seconds((now_ns - begin_ns) / 1e9)
        return [
            Sign(QUEUE_GROWS, f"{counted(size, 'event')} in the queue, {size - sizes[0][1]:,} more than {took} ago")
        ]

    def _failing(self, now_ns: int) -> list[Sign]:
        """The types with too many failed events since the window began."""
        share, least = self._config.failing_warn_share, self._config.failing_warn_from
        if share is None:
            return []
        counts, window_ns = self._counts, int(FAILING_WINDOW_S * 1e9)
        now: _Counts = {}
        for route in self._routes():  # classes of one name count together
            ended, failed = now.get((route.event_class, route.name), (0, 0))
            now[route.event_class, route.name] = ended + route.handled + route.failed, failed + route.failed
        if not counts:
            counts.append((now_ns, {}))  # what has ended before the first check has ended within the window
        first = counts[0][1]
        signs = []
        for (event_class, event_type), (ended, failed) in now.items():
            ended_before, failed_before = first.get((event_class, event_type), (0, 0))
            ended, failed = ended - ended_before, failed - failed_before
            if failed >= least and failed >= share * ended:
                name = f"{event_class}.{event_type}"
                detail = f"{failed:,} of the last {counted(ended, 'event')} {name} failed"
                signs.append(Sign(EVENTS_FAIL, detail, name))
        if now_ns - counts[-1][0] >= window_ns // _COUNTS:
            counts.append((now_ns, now))
            while len(counts) > 1 and now_ns - counts[1][0] >= window_ns:
                counts.popleft()
        return signs

    def _losing(self, now_ns: int) -> list[Sign]:
        """A sign if a dead letter was lost in the last minute."""
        lost = self._lost()
        if lost > self._lost_until_ns[0]:
            self._lost_until_ns = lost, now_ns + int(FAILING_WINDOW_S * 1e9)
        if now_ns >= self._lost_until_ns[1]:
            return []
        return [Sign(LETTERS_LOST, f"{counted(lost, 'dead letter')} could not be stored, the last within a minute")]
