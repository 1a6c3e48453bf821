"""Write-ahead: an event is in the journal before its post is accepted, and is handled again after a crash."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from dispatcher.errors import EventNotDeclaredError, JournalError
from dispatcher.journal.format.event_codec import EventCodec
from dispatcher.journal.writer import NOT_LOGGED, JournalWriter

log = logging.getLogger("dispatcher.async_dispatcher")


class WriteAhead:
    """The log of the events that one dispatcher accepts. `accept` and `settle` are for any thread."""

    def __init__(self, name: str, journal: JournalWriter, codec: EventCodec) -> None:
        self._name = name
        self._journal = journal
        self._codec = codec

    def accept(self, event: Any) -> int:
        """Log an event on its producer's thread, which may wait for the disk; its accepted seq, or 0: refused.

        Raises:
            EventNotDeclaredError: the event is of a class that was not declared.
        """
        journal = self._journal
        try:
            line = self._codec.encode(event)
        except AttributeError as error:  # it has no type
            raise EventNotDeclaredError(self._name, event) from error
        try:
            return journal.append_accepted(line)
        except JournalError:
            # The journal has reported its failure; if the dispatcher goes on without it, so do its producers.
            return NOT_LOGGED if journal.is_failed and journal.config.failure_policy == "continue" else 0

    def settle(self, accepted_seq: int) -> None:
        """The logged event will never be handled."""
        self._journal.settle(accepted_seq)

    def take_recovered(self) -> list[tuple[int, Any]]:
        """Before the start, once: accepted seqs and events of an earlier run that were not handled, oldest first.

        Raises:
            JournalError: the class of an event was not declared, or has changed.
        """
        recovered = [(accepted.seq, self._codec.decode(accepted.line)) for accepted in self._journal.recovered]
        for _, event in recovered:
            with contextlib.suppress(AttributeError, TypeError, ValueError):  # an event with slots has no room for it
                object.__setattr__(event, "redelivered", True)
        if recovered:
            self._journal.forget_recovered()
            log.warning("%s: %d accepted events of an earlier run are handled first", self._name, len(recovered))
        return recovered
