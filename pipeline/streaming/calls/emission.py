"""Emitting what is complete: from an operator's queue to its output, while that has room. Mailbox thread only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, TypeAlias

from dispatcher.errors import RejectedExecutionError
from dispatcher.mailbox import MailboxExecutor
from pipeline.streaming.calls.element_queues import StreamElementQueue
from pipeline.streaming.elements import StreamElement

OutputAvailability: TypeAlias = Callable[[], "Future[None] | None"]
"""None while the output takes elements; else a future that completes, in any thread, when it does again.

An error of the future fails the task.
"""

_ELEMENTS_PER_STEP: Final = 128
"""Elements emitted before other mail has its turn."""


class Emission:
    """Gives the queue's completed elements to `output`, in the queue's order."""

    def __init__(
        self,
        queue: StreamElementQueue[Any, Any],
        output: Callable[[StreamElement[Any]], Any],
        output_availability: OutputAvailability | None,
        executor: MailboxExecutor,
    ) -> None:
        self._queue = queue
        self._output = output
        self._output_availability = output_availability
        self._executor = executor
        self._is_stopped = False
        self._is_running = False  # the output, or mail that it waits for, may complete more: one of us is enough
        self._is_postponed = False  # until a mail that is on its way, or will be sent when the output has room
        self._room: Future[None] | None = None  # somebody waits for room in the queue

    def run(self) -> None:
        """Emit what is complete and has its turn; some of it, if it is much, and the rest by another mail."""
        if self._is_running or self._is_postponed or self._is_stopped:
            return
        self._is_running = True
        try:
            self._step()
        finally:
            self._is_running = False
            if self._room is not None and not self._queue.is_full():
                room, self._room = self._room, None
                with suppress(InvalidStateError):  # cancelled by who waited
                    room.set_result(None)

    def stop(self) -> None:
        """Emit nothing any more."""
        self._is_stopped = True

    def room(self) -> Future[None] | None:
        """None if the queue has room; else a future, completed on the mailbox thread when an emission makes some."""
        if not self._queue.is_full():
            return None
        if self._room is None:
            self._room = Future()
        return self._room

    def _step(self) -> None:
        queue, output = self._queue, self._output
        if self._output_availability is None:
            if queue.emit_completed_elements(output, _ELEMENTS_PER_STEP) == _ELEMENTS_PER_STEP:
                self._postpone()
            return
        for _ in range(_ELEMENTS_PER_STEP):
            if not queue.has_completed_elements():
                return
            available = self._output_availability()
            if available is not None and not available.done():
                self._is_postponed = True
                available.add_done_callback(self._send_mail)
                return
            _check(available)
            queue.emit_completed_element(output)
        self._postpone()

    def _postpone(self) -> None:
        self._is_postponed = True
        self._send_mail(None)

    def _send_mail(self, available: Future[None] | None) -> None:
        """Any thread."""
        with suppress(RejectedExecutionError):  # the mailbox is closed: the state will be replayed
            self._executor.execute(lambda: self._run_postponed(available), "emit completed elements")

    def _run_postponed(self, available: Future[None] | None) -> None:
        self._is_postponed = False
        _check(available)
        self.run()


def _check(available: Future[None] | None) -> None:
    """Raise what an output's future, which is done, has ended with."""
    if available is not None and not available.cancelled() and (error := available.exception()) is not None:
        raise error
