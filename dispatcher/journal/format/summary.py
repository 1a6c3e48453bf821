"""What a segment holds, summed up; its END frame carries it."""

from __future__ import annotations

import time
from typing import NamedTuple

from dispatcher.journal.format.columns import EncodedRows
from dispatcher.journal.format.frames import Header


class Summary(NamedTuple):
    """The contents of a segment. Seqs and accepted seqs are contiguous."""

    first_seq: int
    events: int = 0
    transitions: int = 0
    first_accepted: int = 1
    accepted: int = 0
    min_at: int = 0
    """Earliest time of any row, in Unix ns on the run's clock; like `max_at` 0 if there are no rows."""
    max_at: int = 0
    frames: int = 0
    """Including START and END."""
    closed_at: int = 0
    """Unix ns on the wall clock."""
    recover_from: int = 0
    """The first segment that recovery must read: the one with the oldest event accepted but not handled."""
    outstanding_from: int = 0
    """That event's accepted seq, or the next one if all were handled; 0: an earlier release wrote the segment."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.events

    @property
    def next_accepted(self) -> int:
        return self.first_accepted + self.accepted

    def following(self) -> Summary:
        """Of an empty segment behind this one."""
        return Summary(self.next_seq, first_accepted=self.next_accepted)

    def with_rows(self, rows: EncodedRows | Header, next_seq: int) -> Summary:
        """After one more frame of rows, which ends before `next_seq`."""
        ranges = [(part.min_at, part.max_at) for part in (self, rows) if part.events or part.transitions] or [(0, 0)]
        return self._replace(
            events=max(0, next_seq - self.first_seq),
            transitions=self.transitions + rows.transitions,
            min_at=min(min_at for min_at, _ in ranges),
            max_at=max(max_at for _, max_at in ranges),
        )

    def closed(self, recover_from: int, outstanding_from: int = 0) -> Summary:
        """With the END frame."""
        return self._replace(
            frames=self.frames + 1,
            closed_at=time.time_ns(),
            recover_from=recover_from,
            outstanding_from=outstanding_from,
        )
