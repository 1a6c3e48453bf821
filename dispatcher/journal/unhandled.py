"""The unhandled events of a journal in write-ahead mode, read without its writer's lock and without repairing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.event_codec import marks_of
from dispatcher.journal.format.frames import ACCEPTED, Frame, walk
from dispatcher.journal.format.outstanding import Accepted, Outstanding
from dispatcher.journal.format.segments import segment_number
from dispatcher.journal.snapshot import JournalSnapshot, look_at, unreadable

_ATTEMPTS: Final = 100
"""More than enough to read a journal while its writer closes no segment."""


class Unhandled(NamedTuple):
    """What a journal owes at one moment."""

    events: tuple[Accepted, ...]
    """Accepted and not recorded as handled, oldest first."""
    first_line: bytes | None
    """The line of the first accepted event that the journal still has, handled or not; None: it has none."""

    @property
    def is_of_letters(self) -> bool:
        """The journal is a folder of dead letters."""
        return self.first_line is not None and marks_of(self.first_line).died is not None


def read_unhandled(folder: Path, on_damage: Callable[[str], None] = lambda line: None) -> Unhandled:
    """Read the journal of one dispatcher, also while it is written.

    `on_damage` gets a line for each damaged stretch and each missing segment.

    Raises:
        JournalError: not a journal, or a file cannot be read.
    """
    for _ in range(_ATTEMPTS):
        snapshot = look_at(folder)
        segments = snapshot.in_order
        try:
            found, damages = _unhandled_in(snapshot, segments), snapshot.missing()
            first = _first_line(segments)
        except FileNotFoundError:  # the writer has closed or removed a segment meanwhile
            continue
        except OSError as error:
            raise unreadable(folder, error) from error
        for damage in (*damages, *found[1]):
            on_damage(damage)
        return Unhandled(found[0], first)
    raise JournalError(f"{folder}: its segments change while they are read. Try again.")


def _unhandled_in(snapshot: JournalSnapshot, segments: Sequence[Path]) -> tuple[tuple[Accepted, ...], list[str]]:
    summaries = (segment.summary for segment in reversed(snapshot.summarized))
    last = next(filter(None, summaries), None)
    first = max(1, last.recover_from if last is not None else 1)
    outstanding = Outstanding(snapshot.path, first)
    damages: list[str] = []
    for segment in segments:
        if segment_number(segment) >= first:
            is_open = segment.name.startswith(".")
            found = outstanding.read(segment, is_open=is_open)
            damages += (str(damage) for damage in found if not (is_open and damage.at_end))
    return outstanding.accepted(), damages


def _first_line(segments: Sequence[Path]) -> bytes | None:
    for segment in segments:
        for found in walk(segment, lambda header: header.kind == ACCEPTED):
            if isinstance(found, Frame) and found.header.kind == ACCEPTED:
                return found.payload.partition(b"\n")[0]
    return None
