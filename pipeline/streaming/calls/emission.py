"""Emits completed elements from an operator's queue while the output has room. The engine's thread only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from dispatcher.errors import RejectedExecutionError
from pipeline.streaming.calls.element_queues import StreamElementQueue
from pipeline.streaming.calls.thread import EngineMailbox

OutputAvailability: TypeAlias = Callable[[], "Future[None] | None"]
"""None while the output accepts elements; else a future that any thread completes when it does again.

A failed future fails the task.
"""

Emitted: TypeAlias = Literal["elements", "results", "records"]
"""What goes to the output: each stream element; lists of results; or lists of pairs of a record and its results."""

_ELEMENTS_PER_STEP: Final = 128
"""Elements emitted before other mail gets its turn."""


class Emission:
    """Passes completed elements to `output`, or what `emits` says, in the queue's order."""

    def __init__(
        self,
        queue: StreamElementQueue[Any, Any],
        output: Callable[..., Any],
        output_availability: OutputAvailability | None,
        mail: EngineMailbox,
        *,
        emits: Emitted = "elements",
    ) -> None:
        self._queue = queue
        self._output = output
        self._output_availability = output_availability
        self._mail = mail
        ways: dict[Emitted, Callable[[Any, int], int]] = {
            "elements": queue.emit_completed_elements,
            "results": queue.emit_completed_results,
            "records": queue.emit_completed_records,
        }
        self._emit = ways[emits]
        self._is_stopped = False
        self._is_running = False  # the output, or mail it runs, may complete more: no nested run
        self._is_postponed = False  # a mail that continues is on its way, or follows when the output has room
        self._room: Future[None] | None = None  # completed when the queue has room again

    def run(self) -> None:
        """Emit what is complete and due: up to _ELEMENTS_PER_STEP elements, the rest in another mail."""
        if self._is_running or self._is_postponed or self._is_stopped:
            return
        self._is_running = True
        try:
            self._step()
        finally:
            self._is_running = False
            self.announce_room()

    def announce_room(self) -> None:
        """Complete the future of `room()` if the queue has room again."""
        if self._room is not None and not self._queue.is_full():
            room, self._room = self._room, None
            with suppress(InvalidStateError):  # the waiter cancelled it
                room.set_result(None)

    def stop(self) -> None:
        """Emit nothing from now on."""
        self._is_stopped = True

    def room(self) -> Future[None] | None:
        """None if the queue has room; else a future that an emission completes on the engine's thread."""
        if not self._queue.is_full():
            return None
        if self._room is None:
            self._room = Future()
        return self._room

    def _step(self) -> None:
        queue, output = self._queue, self._output
        if self._output_availability is None:
            if self._emit(output, _ELEMENTS_PER_STEP) == _ELEMENTS_PER_STEP:
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
            self._emit(output, 1)
        self._postpone()

    def _postpone(self) -> None:
        self._is_postponed = True
        self._send_mail(None)

    def _send_mail(self, available: Future[None] | None) -> None:
        """Any thread."""
        with suppress(RejectedExecutionError):  # the mailbox is closed: the state will be replayed
            self._mail.execute(lambda: self._run_postponed(available), "emit completed elements")

    def _run_postponed(self, available: Future[None] | None) -> None:
        self._is_postponed = False
        _check(available)
        self.run()


def _check(available: Future[None] | None) -> None:
    """Raise the error of a completed availability future, if it has one."""
    if available is not None and not available.cancelled() and (error := available.exception()) is not None:
        raise error
