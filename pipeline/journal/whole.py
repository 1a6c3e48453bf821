"""A journal with all its partitions at one moment, for queries over all of them.

Each partition counts its seqs from 1. Here the seqs of partition n begin after n * 10^12, so that all are unique, and
those of a partition keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from dispatcher.journal.snapshot import ClosedSegment, JournalSnapshot, Parts, look_at, parts_of

SEQS_PER_PARTITION: Final = 10**12


@dataclass(frozen=True)
class WholeJournal:
    """A journal's folder, and the snapshot of each partition, or of the journal itself if it has none."""

    parts: Parts
    snapshots: tuple[JournalSnapshot, ...]

    @property
    def path(self) -> Path:
        return self.parts.path

    @property
    def closed(self) -> list[tuple[Path, int | None]]:
        """The closed segments in the order of their seqs, each with the number of its partition, if there are any."""
        return [(segment, self.parts.number_of(each.path)) for each in self.snapshots for segment in each.closed]

    @cached_property
    def summarized(self) -> tuple[ClosedSegment, ...]:
        """The closed segments in the order of their seqs, with their summaries, read on first access.

        Raises:
            JournalError: a segment cannot be read.
        """
        return tuple(
            segment
            for snapshot in self.snapshots
            for segment in of_partition(snapshot.summarized, self.parts.number_of(snapshot.path))
        )


def of_partition(closed: Iterable[ClosedSegment], partition: int | None) -> Iterator[ClosedSegment]:
    """The segments of a partition, with the seqs that they have in the whole journal."""
    for segment in closed:
        summary = segment.summary
        if summary is not None:
            summary = summary._replace(first_seq=summary.first_seq + (partition or 0) * SEQS_PER_PARTITION)
        yield segment._replace(summary=summary, partition=partition)


def look_at_whole(path: Path | str) -> WholeJournal:
    """Take a snapshot. Raises JournalError as `look_at`."""
    parts = parts_of(path)
    return WholeJournal(parts, tuple(map(look_at, parts.folders)))
