"""Log lines that repeat, where no dispatcher's failures are logged: see also `test_failure_log`."""

from __future__ import annotations

import threading

from dispatcher.util.log_throttle import LogThrottle

from ...kit import TIMEOUT_S
from ...kit.forked import forks, in_child

pytestmark = forks

SECOND_NS = 1_000_000_000


def test_a_signal_handler_may_log_while_its_thread_is_about_to() -> None:
    interrupted = False

    def clock_ns() -> int:  # called while the throttle holds its lock
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            throttle.admit("low")
        return 0

    throttle: LogThrottle[str] = LogThrottle(SECOND_NS, clock_ns)

    assert (throttle.admit("low"), throttle.admit("low")) == (None, None)


def test_a_forked_child_logs_although_a_thread_of_the_parent_holds_the_lock() -> None:
    entered, opened = threading.Event(), threading.Event()

    def clock_ns() -> int:  # called while the throttle holds its lock
        if threading.current_thread() is other:
            entered.set()
            assert opened.wait(TIMEOUT_S)
        return 0

    throttle: LogThrottle[str] = LogThrottle(SECOND_NS, clock_ns)
    other = threading.Thread(target=throttle.admit, args=("low",))
    other.start()
    assert entered.wait(TIMEOUT_S)

    assert in_child(lambda: throttle.admit("low")) == 0
    opened.set()
    other.join(TIMEOUT_S)
