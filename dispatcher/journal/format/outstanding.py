"""What a write-ahead log still owes: accepted events that no row says were handled, and those that are in no file.

Accepted seqs are contiguous over all segments, so a damaged or missing stretch shows as a gap between the seqs on both
sides of it, and its size is known. Behind the last intact frame nothing tells how many events there were.

No loss: a segment that retention has removed, and one before the first that recovery needs, since all its events were
handled; a damaged stretch that held no accepted event; an incomplete frame at the end of the open segment, which was
never accepted under `sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ACCEPTED, ROWS, START, Damage, Frame
from dispatcher.journal.format.segments import decode_start, segment_path
from dispatcher.journal.format.summary import Summary

NEEDED: Final = (START, ACCEPTED, ROWS)
"""The kinds of frames that are read."""


class Accepted(NamedTuple):
    """An event in the write-ahead log."""

    seq: int
    """Its number in the order of acceptance."""
    segment: int
    line: bytes
    """The event, encoded by `EventCodec`."""
    at_ns: int = 0
    """When it was written, in Unix ns; 0: it was copied from another log."""


class Loss(NamedTuple):
    """Accepted events that were in a damaged or missing segment, and that no row records as handled."""

    segments: str
    """The file name, or several."""
    segment: int
    """Number of the first of them."""
    first: int
    """Accepted seq of the first event."""
    last: int | None
    """None: unknown, because no intact frame follows."""

    @property
    def seqs(self) -> range:
        """The accepted seqs; empty if the last one is unknown."""
        return range(self.first, (self.last or 0) + 1)

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.segments}: accepted events from number {self.first} on may be lost"
        if self.last == self.first:
            return f"{self.segments}: accepted event {self.first} is lost"
        return f"{self.segments}: accepted events {self.first} to {self.last} are lost"


class Outstanding:
    """Takes the needed segments of a journal in order, and keeps the accepted events that were not handled. One thread.

    `first`: number of the first segment that recovery needs, according to `last_intact`, the summary of the last
    segment that has one; `before`: the summary of the segment before it. None: unknown.
    """

    def __init__(
        self, journal: Path, first: int, last_intact: Summary | None = None, before: Summary | None = None
    ) -> None:
        self._journal = journal
        self._following = first  # number of the next segment
        # All events with a smaller accepted seq were handled; 0: unknown.
        self._floor = last_intact.outstanding_from if last_intact is not None else 0
        # The next accepted seq; None: unknown.
        self._next = max(self._floor, before.next_accepted if before is not None else 0) or None
        self._is_write_ahead = last_intact is not None and last_intact.next_accepted > 1  # events were accepted
        self._has_rows = last_intact is not None
        self._events: dict[int, Accepted] = {}
        self._handled: set[int] = set()  # accepted seqs that rows name, and that no frame has
        self._suspects: list[range] = []  # segments that are missing or damaged since the last intact frame
        self._gaps: list[tuple[list[range], int, int]] = []  # with the first and the last accepted seq

    def add(
        self, number: int, frames: Iterable[Frame | Damage], summary: Summary | None, *, is_open: bool
    ) -> list[Damage]:
        """Take the frames of one more segment, and its summary if it is closed and sound. Returns its damage."""
        damages = []
        self._expect(number)
        for found in frames:
            if isinstance(found, Frame):
                self._add(found, number)
            elif not found.is_retired:
                damages.append(found)
                if not found.is_torn:
                    self._suspects.append(range(number, number + 1))
        if summary is not None:
            self._reach(summary.next_accepted)
        elif not is_open:
            self._suspects.append(range(number, number + 1))
        return damages

    def end(self, last: int) -> None:
        """All segments were read, of which `last` is to be the last one."""
        self._expect(last + 1)

    def oldest_segment(self) -> int:
        """The first segment that the next recovery needs; 0: it needs none of these."""
        numbers = [accepted.segment for accepted in self._events.values()][:1] + [
            loss.segment for loss in self.losses()
        ]
        return min(numbers, default=0)

    def oldest_seq(self) -> int:
        """The first accepted seq that may be outstanding."""
        return min((*islice(self._events, 1), *(loss.first for loss in self.losses())), default=self.next_seq())

    def next_seq(self) -> int:
        """The accepted seq of the next event."""
        return self._next or 1

    def accepted(self) -> tuple[Accepted, ...]:
        return tuple(self._events.values())

    def losses(self) -> tuple[Loss, ...]:
        """The events that no file has, in their order."""
        found = [
            Loss(self._named(suspects), suspects[0].start, *stretch)
            for suspects, first, last in self._gaps
            for stretch in _without(first, last, self._handled)
        ]
        # A journal that has rows and no accepted event is not a write-ahead log.
        is_write_ahead = self._is_write_ahead or self.next_seq() > 1 or not self._has_rows
        if self._suspects and is_write_ahead:
            found.append(Loss(self._named(self._suspects), self._suspects[0].start, self.next_seq(), None))
        return tuple(found)

    def _expect(self, number: int) -> None:
        if number > self._following:
            self._suspects.append(range(self._following, number))
        self._following = max(self._following, number + 1)

    def _add(self, frame: Frame, segment: int) -> None:
        header = frame.header
        if header.kind == START:
            first = decode_start(frame).get("first_accepted")
            if type(first) is int:  # an earlier release did not write it
                self._reach(first)
        elif header.kind == ACCEPTED:
            self._reach(header.first_seq)
            for seq, line in enumerate(frame.payload.split(b"\n"), start=header.first_seq):
                self._events[seq] = Accepted(seq, segment, line, header.min_at)
            self._next = max(self.next_seq(), header.first_seq + header.events)
        elif header.kind == ROWS:
            self._has_rows = True
            for seq in decode_rows(frame.payload).no_longer_outstanding():
                self._is_write_ahead = True
                if self._events.pop(seq, None) is None and seq >= self._floor:
                    self._handled.add(seq)

    def _reach(self, seq: int) -> None:
        """The next frame begins at this accepted seq: what was not read before it is lost."""
        expected = self._next if self._next is not None else 1 if self._suspects else seq
        if seq > expected:
            self._gaps.append((self._suspects or [range(self._following - 1, self._following)], expected, seq - 1))
        if seq >= expected:
            self._suspects = []
        self._next = max(expected, seq)

    def _named(self, suspects: list[range]) -> str:
        names = []
        for each in dict.fromkeys(suspects):
            first, last = (segment_path(self._journal, number).name for number in (each.start, each.stop - 1))
            names.append(first if len(each) == 1 else f"{first} to {last}")
        return ", ".join(names)


def _without(first: int, last: int, handled: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The stretches between `first` and `last` that have none of these seqs."""
    for seq in (*sorted(seq for seq in handled if first <= seq <= last), last + 1):
        if first < seq:
            yield first, seq - 1
        first = seq + 1
