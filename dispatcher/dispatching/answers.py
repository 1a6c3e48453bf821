"""Handing over events with a delivery, and giving asks their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.dispatching.lanes import EventTaken
from dispatcher.dispatching.times import Progress
from dispatcher.journal.writer import JournalWriter
from dispatcher.queue.delivery import Ask, Delivery


class Answers:
    """The answers of one dispatcher's asks. Handler thread.

    In write-ahead mode an answer waits until its event's row is as durable as a post is when it returns: otherwise the
    event could come again after a crash, although its caller has seen the answer.
    """

    def __init__(self, progress: Progress, journal: JournalWriter | None) -> None:
        self._progress = progress
        self._journal = journal if journal is not None and journal.config.write_ahead else None  # None: none waits
        self._waiting: list[tuple[Ask, Any, BaseException | None]] = []
        # Of the event in the handler thread's hands.
        self._value: Any = None
        self._failure: BaseException | None = None

    def handle(self, delivery: Delivery, handle: Callable[[Any], Any], event: Any) -> None:
        """Call the handler, and keep what it returns for `give`.

        Raises:
            EventTaken: the caller has withdrawn the event, which counts as discarded.
            BaseException: raised by the handler.
        """
        if delivery.begin():
            self._value = handle(event)
            return
        if self._journal is not None:
            self._journal.settle(self._progress.accepted_seq())
        self._progress.withdrawn += 1
        raise EventTaken

    def failed(self, error: BaseException) -> None:
        """The event in hand has failed: keep the error for `give`."""
        self._failure = error

    def give(self, delivery: Delivery) -> None:
        """The event in hand has ended, and its row is appended. Raises nothing."""
        value, error, self._value, self._failure = self._value, self._failure, None, None
        self.give_to(delivery, value, error)

    def give_to(self, delivery: Delivery, value: Any, error: BaseException | None) -> None:
        """As `give`, of an event that was in the hands of a coroutine."""
        if delivery.ask is None:
            return
        if self._journal is None:
            delivery.ask.answer(value, error)
        else:
            self._waiting.append((delivery.ask, value, error))

    def give_waiting(self) -> None:
        """Write the rows, and give the answers that wait for them. Between events.

        Raises:
            JournalError: the disk failed, and the journal's policy is `stop`.
        """
        journal, waiting = self._journal, self._waiting
        if journal is None or not waiting:
            return
        self._waiting = []
        failure: BaseException | None = None
        try:
            if journal.config.durability == "sync":
                journal.flush_to_disk()
            else:
                journal.flush()
            failure = journal.failure
        except BaseException as raised:
            failure = raised
            raise
        finally:
            for ask, value, error in waiting:
                ask.answer(value, failure or error)
