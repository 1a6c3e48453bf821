"""A future whose waits and looks take no lock.

A signal handler may interrupt a thread that waits for a future, or that asks whether it is done, and post; and in
write-ahead mode that post may wait for the thread that completes the future. So each future has a latch, a lock that is
open once there is a result. Only `concurrent.futures.wait` and `as_completed` take the lock that all futures of a
dispatcher share.
"""

from __future__ import annotations

import logging
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from threading import Condition
from typing import Any, Final

from dispatcher.util.foreign import reraise_interrupt, tell
from dispatcher.util.threads import release_anyhow

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

# States, as in concurrent.futures.
_PENDING: Final = "PENDING"
_FINISHED: Final = "FINISHED"
_CANCELLED: Final = "CANCELLED_AND_NOTIFIED"


class LatchedFuture(Future[Any]):
    """The future of an event. Any thread."""

    # The state that the base class makes in its constructor, which costs more than all else of an ask.
    _state: str = _PENDING
    _result: Any = None
    _exception: BaseException | None = None

    def __init__(self, name: str, condition: Condition) -> None:
        self._name = name  # of the dispatcher; never changes, like `_latch` and `_condition`
        self._condition = condition  # held while the state is set
        self._latch = allocate_lock()
        self._latch.acquire()

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        """Of `wait` and `as_completed`, which hold the condition."""
        waiters: list[Any] = self.__dict__.setdefault("waiters", [])
        return waiters

    def done(self) -> bool:
        """Whether there is a result, an error, or a cancellation."""
        return self._state is not _PENDING

    def cancelled(self) -> bool:
        return self._state is _CANCELLED

    def running(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        try:
            if self._state is not _FINISHED:
                self._wait(timeout)
            if self._exception is not None:
                raise self._exception
            return self._result
        finally:
            del self  # the traceback of the error that is raised refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        """Raises TimeoutError, CancelledError, and what `_check_wait` raises."""
        if self._state is _PENDING:
            self._check_wait()
            if not self._latch.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                self._give_up()
                if not self.done() or self.cancelled():
                    raise TimeoutError
            else:
                release_anyhow(self._latch)  # for the next one; `_complete` may have been repeated meanwhile
        if self._state is _CANCELLED:
            raise CancelledError

    def _check_wait(self) -> None:
        """Raises AskError, ForkedProcessError: the wait would never end."""

    def _give_up(self) -> None:
        """A wait has come to its timeout."""

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Call `fn` with the future once it is done: on the thread that completes it, or here if it is done."""
        callbacks: deque[Callable[[Any], Any]] = self.__dict__.setdefault("callbacks", deque())
        # Append before the look: the thread that completes it sets the state before it looks for callbacks.
        callbacks.append(fn)
        if self.done():
            self._invoke_callbacks()

    def _invoke_callbacks(self) -> None:
        """Call each once."""
        callbacks = self.__dict__.get("callbacks")
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                callback(self)
            except BaseException as error:  # also one that ends its thread
                reraise_interrupt(error)
                message, fields = "%s: a callback of a future failed", {"dispatcher": self._name}
                tell(log, logging.ERROR, message, self._name, error=error, extra=fields)

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Complete it with a value or an error, unless it is done. Raises nothing."""
        self._complete(_FINISHED, value, error)

    def withdrawn(self) -> None:
        """Complete it as cancelled, unless it is done."""
        self._complete(_CANCELLED, None, None)

    def _complete(self, state: str, value: Any, error: BaseException | None) -> None:
        """Repeating it is harmless, and goes on after an interrupt."""
        with self._condition:
            if self._state is _PENDING:
                self._result, self._exception, self._state = value, error, state
                for waiter in self.__dict__.get("waiters", ()):
                    if state is _CANCELLED:
                        waiter.add_cancelled(self)
                    elif error is not None:
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
        if self._latch.locked():
            release_anyhow(self._latch)
        if "callbacks" in self.__dict__:
            self._invoke_callbacks()

    def set_result(self, result: Any) -> None:
        self.settle(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        self.settle(None, exception)
