"""The wait of a stop: for the drain, within its timeout, whatever a handler or a coroutine does (invariant 7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from dispatcher.dispatching.coroutines import Coroutines
from dispatcher.dispatching.draining import Drain
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.state import ABANDONED
from dispatcher.util.foreign import tell

log = logging.getLogger("dispatcher.async_dispatcher")

GRACE_S: Final = 0.5
"""The longest wait for a handler that is about to return."""


def grace_s(drain_timeout_s: float) -> float:
    """The part of the drain timeout that a stop keeps for a handler that is about to return."""
    return min(GRACE_S, drain_timeout_s / 2)


class StopWait:
    """Waits for one dispatcher's handler thread to end. Any thread that the drain does not need.

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
        self._has_given_up = False  # a wait has ended, and the thread had not; any thread sets it

    @staticmethod
    def wait_for_all(waits: Sequence[StopWait], timeout_s: float) -> None:
        """Wait until all is handled and the threads have ended; after the timeout, discard and report what is left.

        A thread that an earlier wait has given up on is not waited for.
        """
        waits = [each for each in waits if not each._has_given_up]
        started, grace, late = monotonic(), grace_s(timeout_s), waits
        for each in waits:
            each._nudge()
        try:
            late = _wait(waits, timeout_s - grace)
        finally:  # a KeyboardInterrupt also ends the wait
            for each in late:
                each.abandon()
            left_s = started + timeout_s - monotonic()  # to discard a long queue takes time
            _give_up(late, started, max(0.0, min(grace, left_s)))

    def is_over(self) -> bool:
        return self._drain.finished.is_set()

    def wait(self, timeout_s: float) -> None:
        self._drain.finished.wait(timeout_s)

    def has_coroutines(self) -> bool:
        return self._coroutines.count > 0

    def abandon(self) -> None:
        """Do not wait for what is queued: discard it."""
        self._queue.shutdown.shut(ABANDONED)
        self._queue.shutdown.discard()
        self._nudge()

    def give_up_on_coroutines(self, waited_s: float) -> None:
        message = "%s: stop gave up after %.3g s and cancels the coroutines of %d events:\n%s"
        count, what = self._coroutines.count, self._coroutines.describe()
        self._coroutines.give_up_soon()
        tell(log, logging.ERROR, message, self._name, waited_s, count, what)

    def give_up(self, waited_s: float) -> None:
        """Log where the handler hangs, and leave it."""
        self._has_given_up = True
        message = "%s: stop gave up after %.3g s: a handler is still %s"
        tell(log, logging.ERROR, message, self._name, waited_s, self._describe())


def _wait(waits: Sequence[StopWait], timeout_s: float) -> list[StopWait]:
    """Wait for the threads; returns those that have not ended."""
    left_s, deadline = timeout_s, monotonic() + timeout_s
    for each in waits:
        each.wait(left_s)
        left_s = max(0.0, deadline - monotonic())
    return [each for each in waits if not each.is_over()]


def _give_up(late: Sequence[StopWait], started: float, grace: float) -> None:
    """Wait for coroutines and handlers that are about to end, and report the others."""
    if any(each.has_coroutines() for each in late):
        grace /= 2  # one half for coroutines that are about to end, one for the threads that give up on the others
        late = _wait(late, grace)
        for each in late:
            if each.has_coroutines():
                each.give_up_on_coroutines(monotonic() - started)
    for each in _wait(late, grace):
        each.give_up(monotonic() - started)
