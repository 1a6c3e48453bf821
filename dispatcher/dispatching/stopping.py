"""The wait of a stop: for the drain, within its timeout, whatever a handler or a coroutine does (invariant 7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from dispatcher.dispatching.coroutines import Coroutines
from dispatcher.dispatching.draining import Drain
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.state import ABANDONED
from dispatcher.util.foreign import tell

log = logging.getLogger("dispatcher.async_dispatcher")

_ABORT_GRACE_S: Final = 0.5


def grace_s(drain_timeout_s: float) -> float:
    """The part of the drain timeout that a stop keeps for a handler that is about to return."""
    return min(_ABORT_GRACE_S, drain_timeout_s / 2)


class StopWait:
    """Waits for one dispatcher's handler thread to end. Any thread.

    `nudge()` makes that thread look at the queue's phase, `describe()` tells what it is doing.
    """

    def __init__(
        self,
        name: str,
        queue: EventQueue,
        drain: Drain,
        coroutines: Coroutines,
        nudge: Callable[[], None],
        describe: Callable[[], str],
    ) -> None:
        self._name = name
        self._queue, self._drain, self._coroutines = queue, drain, coroutines
        self._nudge, self._describe = nudge, describe

    def wait(self, timeout_s: float, *, is_handling: bool) -> None:
        """Wait until all is handled and the thread has ended; after the timeout, discard and report what is left.

        Returns at once if the caller `is_handling` an event or is on the loop of the coroutines: the drain needs it. If
        there are coroutines, another thread waits instead.
        """
        if is_handling or (self._coroutines.is_on_loop() and not self._drain.is_drained()):
            if self._coroutines.is_used() and not self._drain.finished.is_set():
                if not is_handling:
                    message = "%s: stop was called on its event loop's thread and continues in the background; "
                    tell(log, logging.WARNING, f"{message}`await aio.stop(dispatcher)` waits for it", self._name)
                threading.Thread(target=self._wait, args=(timeout_s,), name=f"{self._name}-stop", daemon=True).start()
            return
        self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> None:
        self._nudge()
        started = monotonic()
        finished = False
        grace = grace_s(timeout_s)
        try:
            finished = self._drain.finished.wait(timeout_s - grace)
        finally:  # a KeyboardInterrupt also ends the wait
            if not finished:
                self._abort(started, grace)

    def _abort(self, started: float, grace: float) -> None:
        """Stop waiting for the drain: discard the queue; log where a handler or a coroutine hangs, and leave it."""
        finished = self._drain.finished
        self._queue.shutdown.shut(ABANDONED)
        self._queue.shutdown.discard()
        self._nudge()
        if self._coroutines.count:
            grace /= 2  # one half for coroutines that are about to end, one for the thread that gives up on the others
            if finished.wait(grace):
                return
            message = "%s: stop gave up after %.3g s and cancels the coroutines of %d events:\n%s"
            count, what = self._coroutines.count, self._coroutines.describe()
            self._coroutines.give_up_soon()
            tell(log, logging.ERROR, message, self._name, monotonic() - started, count, what)
        if not finished.wait(grace):
            waited_s, what = monotonic() - started, self._describe()
            message = "%s: stop gave up after %.3g s: a handler is still %s"
            tell(log, logging.ERROR, message, self._name, waited_s, what)
