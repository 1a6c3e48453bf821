"""Orders, whose states a journal keeps."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from dispatcher import JournalWriter

from ...journal_rows import begin, end
from ...kit import until

ENDS: Final = frozenset({"ENDED"})
NEVER: Final = 10**9


class State(Enum):
    NEW = 1
    OPEN = 2
    HELD = 3
    ENDED = 4


def move(
    writer: JournalWriter,
    entity: str,
    to: State,
    machine: str = "Order",
    *,
    at: int = 1000,
    valid: bool = True,
    data: str | None = None,
    accepted_seq: int = 0,
) -> None:
    """One event, which makes one transition."""
    begin(writer, at)
    writer.origin().add_transition(machine, entity, "NEW", "MADE", to.name, valid=valid, data=data)
    end(writer, "shop", "Move", "MADE", "handled", entity=entity, accepted_seq=accepted_seq)


def flush(writer: JournalWriter) -> None:
    """Write the rows, and wait for the snapshot that is due then."""
    writer.flush()
    live: Mapping[str, Any] = writer._live_states
    until(lambda: not any(each._is_writing for each in live.values()))
