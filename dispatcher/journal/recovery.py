"""Recovery after a crash: closes the open segment after its last intact frame, and finds the unhandled events."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, Damage, FrameReader
from dispatcher.journal.format.segments import (
    Manifest,
    Summary,
    close_left_open,
    holds_journal,
    lock_for_writing,
    open_segments,
    read_manifest,
    read_summary,
    segment_number,
    segments,
)


class Accepted(NamedTuple):
    """An event in the write-ahead log."""

    seq: int
    """Its number in the order of acceptance."""
    segment: int
    line: bytes
    """As `EventCodec` encoded it."""


class Recovered(NamedTuple):
    """A repaired journal, and where its next writer continues; by default a new journal."""

    summary: Summary = Summary(1)
    """Of the last segment."""
    first_segment: int = 1
    next_segment: int = 1
    accepted: tuple[Accepted, ...] = ()
    """Accepted but not handled, oldest first."""
    done: tuple[str, ...] = ()
    """The repairs, one line each."""


def recover(path: Path | str) -> Recovered:
    """Repair the journal of a dead writer: cut the incomplete end off its open segment, and close the segment.

    No intact frame is lost. Repeating it changes nothing.

    Raises:
        JournalError: there is no journal, it is being written, or it cannot be written.
    """
    path = Path(path)
    if not path.is_dir():
        raise JournalError(f"{path}: no such journal folder")
    if not holds_journal(path):
        raise JournalError(f"{path}: not a journal: it has no segments")
    try:
        lock = lock_for_writing(path)
        try:
            recovered = repair(path)
            manifest = Manifest(recovered.first_segment, recovered.next_segment - 1, closed=True)
            if recovered.done or read_manifest(path)[0] != manifest:
                manifest.write(path, sync=True)
        finally:
            lock.release()
    except OSError as error:
        raise JournalError(f"{path}: cannot be recovered: {error.strerror or error}") from error
    return recovered


def repair(path: Path) -> Recovered:
    """`recover`, for a caller that holds the lock and writes the manifest. Raises OSError, JournalError."""
    manifest, problem = read_manifest(path)
    done = [problem] if problem is not None else []
    closed, left_open = segments(path), open_segments(path)
    first = manifest.first if manifest is not None else min(map(segment_number, closed), default=1)
    for segment in closed:
        if segment_number(segment) < first:  # retention has removed it from the manifest only
            segment.unlink()
    closed = [segment for segment in closed if segment_number(segment) >= first]
    last_summary = _summary_after(closed)
    outstanding = _Outstanding()
    start = last_summary.recover_from
    for segment in closed:
        if segment_number(segment) >= start:
            outstanding.read(segment)
    next_segment = max(segment_number(closed[-1]) if closed else 0, manifest.last if manifest is not None else 0) + 1
    for segment in left_open:
        damages = outstanding.read(segment)
        summary, keep = _scan(segment, last_summary)
        cut = segment.stat().st_size - keep
        if summary.frames <= 1:
            Manifest(first, next_segment - 1, closed=True).write(path, sync=True)
            segment.unlink()
            if cut:
                done.append(f"{segment.name}: removed: it had no intact frame, cut {cut} bytes")
            continue
        last_summary = summary
        number = segment_number(segment)
        recover_from = outstanding.oldest_segment() or number + 1
        new = close_left_open(segment, keep, summary, recover_from)
        done += [f"{damage}: skipped" for damage in damages if not damage.at_end]
        done.append(f"{new.name}: closed: kept {summary.events} events, cut {cut} bytes")
        next_segment = number + 1
    return Recovered(last_summary, first, next_segment, outstanding.accepted(), tuple(done))


class _Outstanding:
    """Accepted events that no segment read so far records as handled."""

    def __init__(self) -> None:
        self._events: dict[int, Accepted] = {}

    def read(self, segment: Path) -> list[Damage]:
        """Read one more segment; returns its damaged stretches."""
        damages = []
        number = segment_number(segment)
        with FrameReader(segment) as reader:
            for found in reader.frames(lambda header: header.kind in (ACCEPTED, ROWS)):
                if isinstance(found, Damage):
                    damages.append(found)
                elif found.header.kind == ACCEPTED:
                    lines = found.payload.split(b"\n")
                    for seq, line in enumerate(lines, start=found.header.first_seq):
                        self._events[seq] = Accepted(seq, number, line)
                elif found.header.kind == ROWS and self._events:
                    for seq in decode_rows(found.payload).no_longer_outstanding():
                        self._events.pop(seq, None)
        return damages

    def oldest_segment(self) -> int:
        """0 if nothing is outstanding."""
        return next((accepted.segment for accepted in self._events.values()), 0)

    def accepted(self) -> tuple[Accepted, ...]:
        return tuple(self._events.values())


def _summary_after(closed: list[Path]) -> Summary:
    """The summary of the last closed segment, rebuilt from its intact frames if its end is damaged."""
    damaged = []
    summary = None
    for segment in reversed(closed):
        summary = read_summary(segment)
        if summary is not None:
            break
        damaged.append(segment)
    summary = summary or Summary(1)
    for segment in reversed(damaged):
        summary = _scan(segment, summary)[0]
    return summary


def _scan(segment: Path, before: Summary) -> tuple[Summary, int]:
    """A summary of a segment's intact frames without END, and the offset at which the last of them ends."""
    summary, keep = before.following(), 0
    with FrameReader(segment) as reader:
        for found in reader.frames(lambda _: False, check_all=True):
            if isinstance(found, Damage) or found.header.kind == END:
                continue
            header, keep = found.header, found.end
            next_seq = header.first_seq + header.events
            if header.kind == ROWS:
                summary = summary.with_rows(header, next_seq)
            elif header.kind == ACCEPTED:
                summary = summary._replace(accepted=max(0, next_seq - summary.first_accepted))
            summary = summary._replace(frames=max(summary.frames, header.number + 1))
    return summary, keep
