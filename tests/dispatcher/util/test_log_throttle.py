"""Log lines that repeat, where no dispatcher's failures are logged: see also `test_failure_log`."""

from __future__ import annotations

import logging
import threading

import pytest

from dispatcher.util.log_throttle import LogThrottle

from ...kit import TIMEOUT_S
from ...kit.forked import forks, in_child

pytestmark = forks

SECOND_NS = 1_000_000_000


def test_a_warning_that_repeats_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = 0
    throttle: LogThrottle[str] = LogThrottle(60 * SECOND_NS, lambda: now_ns)

    for moment_s in (0.0, 0.1, 59.9, 60.0, 60.1, 200.0, 300.0):
        now_ns = int(moment_s * SECOND_NS)
        throttle.warn(logging.getLogger("test"), "away", f"away at {moment_s}")

    assert caplog.messages == [
        "away at 0.0",
        "away at 60.0 (2 more since the last line)",
        "away at 200.0 (1 more since the last line)",
        "away at 300.0",
    ]


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
