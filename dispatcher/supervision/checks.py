"""Health checks that a program registers, such as whether its database answers.

A check is foreign code: it may raise, or never return. So it runs on a thread of its own, and the wait for its
answer is bounded.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any, Final

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.util.foreign import describe, plain_text, tell, text_of
from dispatcher.util.functions import require_plain
from dispatcher.util.terminal import one_line
from dispatcher.util.threads import try_to_start

log: logging.Logger = logging.getLogger(__name__)

RUNS_EVERY_S: Final = 1.0
"""A check runs at most once in this time; in between, its last answer is used."""


class HealthCheck:
    """One check. Any thread.

    It has failed if it returned False, raised, or did not return within `timeout_s`. No second run begins before the
    first has returned.
    """

    def __init__(self, name: str, check: Callable[[], Any], timeout_s: float, clock_s: Callable[[], float]) -> None:
        """Raises TypeError, ValueError: as `Health.register_check`."""
        if not isinstance(name, str):
            raise InvalidTypeError(f"the name of a check must be a str, not {text_of(name)}")
        if not name:
            raise InvalidValueError("a check must have a name, such as 'database'")
        name = one_line(plain_text(name), 100)
        self.name: Final = name
        self._check = require_plain(check, f"check {name}", "returns True or False")
        if not 0 < timeout_s < math.inf:
            raise InvalidValueError(
                f"check {name}: timeout_s must be more than 0 s and finite, not {text_of(timeout_s)}"
            )
        self._timeout_s = timeout_s
        self._clock_s = clock_s  # monotonic
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self._begun_s: float | None = None  # guarded by _lock: when the last run began
        self._returned = threading.Event()  # guarded by _lock: of the last run; replaced for each
        self._returned.set()
        self._is_ok = False  # guarded by _lock: the last answer
        self._was_ok: bool | None = None  # what was logged last; threads of its runs: two at once may log it twice

    def begin_if_due(self) -> None:
        """Begin a run, unless one is running or has begun within the last second. Does not block."""
        with self._lock:
            now_s = self._clock_s()
            is_recent = self._begun_s is not None and now_s - self._begun_s < RUNS_EVERY_S
            if is_recent or not self._returned.is_set():
                return
            self._begun_s = now_s
            returned = self._returned = threading.Event()
        thread = threading.Thread(target=self._run, args=(returned,), name=f"check-{self.name}", daemon=True)
        if not try_to_start(thread):
            self._note(False, returned)

    def has_begun(self) -> bool:
        """Whether there was a run."""
        with self._lock:
            return self._begun_s is not None

    def is_ok(self, *, waits: bool) -> bool:
        """The last answer. With `waits`, waits for the current run to end, or for its time to be over."""
        with self._lock:
            returned = self._returned
            left_s = (self._begun_s or 0.0) + self._timeout_s - self._clock_s()
        if waits and left_s > 0:
            returned.wait(left_s)
        with self._lock:
            is_overdue = not returned.is_set() and (waits or left_s <= 0)
            return self._is_ok and not is_overdue

    def after_fork(self) -> None:
        """In a forked child, which has no thread of a check."""
        self._lock = threading.Lock()
        self._returned.set()

    def _run(self, returned: threading.Event) -> None:
        """The thread of one run."""
        begun_s, error = self._clock_s(), None
        try:
            is_ok = bool(self._check())
        except BaseException as raised:  # it is not the main thread, so this is no Ctrl-C
            is_ok, error = False, raised
        is_late = self._clock_s() - begun_s > self._timeout_s
        self._note(is_ok and not is_late, returned)
        # Only now: the answer must not wait for logging.
        self._log(is_ok, is_late, error)

    def _note(self, is_ok: bool, returned: threading.Event) -> None:
        with self._lock:
            self._is_ok = is_ok
            returned.set()

    def _log(self, is_ok: bool, is_late: bool, error: BaseException | None) -> None:
        was_ok, self._was_ok = self._was_ok, is_ok and not is_late
        if self._was_ok == was_ok:
            return
        if self._was_ok:
            if was_ok is not None:
                tell(log, logging.INFO, "check %s: recovered", self.name)
            return
        why = f"took longer than {self._timeout_s:g} s" if is_late else "returned False"
        tell(log, logging.WARNING, "check %s: %s", self.name, why if error is None else f"raised {describe(error)}")
