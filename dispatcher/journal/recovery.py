"""After a writer died: what of its journal is whole, and which accepted events were not handled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, Damage, Frame, FrameReader, Header
from dispatcher.journal.format.segments import (
    Manifest,
    Summary,
    close_left_open,
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
    """As `dispatcher.journal.format.event_codec` wrote it."""


class Recovered(NamedTuple):
    """A journal that was repaired, and where its next writer goes on."""

    summary: Summary
    """Of the last segment."""
    first_segment: int
    next_segment: int
    accepted: tuple[Accepted, ...]
    """Accepted and not handled, oldest first."""
    done: tuple[str, ...]
    """What was repaired, one line each."""

    @classmethod
    def nothing(cls) -> Recovered:
        """Of a journal that has not begun."""
        return cls(Summary(1), 1, 1, (), ())


def recover(path: Path | str) -> Recovered:
    """Repair the journal that a dead writer left: cut off the torn end of its open segment, and close that.

    Nothing may be writing it. Nothing that is whole is lost, and repeating it changes nothing.

    Raises:
        JournalError: there is no journal, it is being written, or it cannot be written.
    """
    path = Path(path)
    if not path.is_dir():
        raise JournalError(f"{path}: no such journal folder")
    if not (segments(path) or open_segments(path) or read_manifest(path) != (None, None)):
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
    """`recover`, for a caller that already holds the lock and writes the manifest. Raises OSError, too."""
    manifest, problem = read_manifest(path)
    done = [problem] if problem is not None else []
    closed, left_open = segments(path), open_segments(path)
    first = manifest.first if manifest is not None else min(map(segment_number, closed), default=1)
    for segment in closed:
        if segment_number(segment) < first:  # retention had removed it from the manifest
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
        summary, frames, keep = _scan(segment, last_summary)
        cut = segment.stat().st_size - keep
        if frames <= 1:
            Manifest(first, next_segment - 1, closed=True).write(path, sync=True)
            segment.unlink()
            if cut:
                done.append(f"{segment.name}: removed: nothing whole was in it, {cut} bytes torn off")
            continue
        last_summary = summary
        number = segment_number(segment)
        recover_from = outstanding.oldest_segment() or number + 1
        new = close_left_open(segment, keep, summary, recover_from, number=frames)
        done += [f"{damage}: passed over" for damage in damages if not damage.at_end]
        done.append(f"{new.name}: closed: kept {summary.events} events, cut {cut} bytes")
        next_segment = number + 1
    return Recovered(last_summary, first, next_segment, outstanding.accepted(), tuple(done))


class _Outstanding:
    """Accepted events of the segments read so far that none of them says were handled."""

    def __init__(self) -> None:
        self._events: dict[int, Accepted] = {}

    def read(self, segment: Path) -> list[Damage]:
        """Read one more segment; returns what could not be."""
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
        """0: nothing is outstanding."""
        return next((accepted.segment for accepted in self._events.values()), 0)

    def accepted(self) -> tuple[Accepted, ...]:
        return tuple(self._events.values())


def _summary_after(closed: list[Path]) -> Summary:
    """Of the last closed segment, also if its end is damaged: then what is whole in it, behind the one before."""
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


def _scan(segment: Path, before: Summary) -> tuple[Summary, int, int]:
    """What is whole in a segment: its summary, the number for the next frame, and where the last whole frame ends."""
    summary = Summary(before.next_seq, first_accepted=before.next_accepted)
    frames, keep, is_first = 0, 0, True
    for header, end in _headers(segment):
        keep, frames = end, max(frames, header.number + 1)
        if header.kind == ROWS:
            times = (summary.min_at, summary.max_at)
            if header.events or header.transitions:
                times = (
                    (header.min_at, header.max_at)
                    if is_first
                    else (min(times[0], header.min_at), max(times[1], header.max_at))
                )
                is_first = False
            summary = summary._replace(
                events=max(0, header.first_seq + header.events - summary.first_seq),
                transitions=summary.transitions + header.transitions,
                min_at=times[0],
                max_at=times[1],
            )
        elif header.kind == ACCEPTED:
            summary = summary._replace(accepted=max(0, header.first_seq + header.events - summary.first_accepted))
    return summary._replace(frames=frames), frames, keep


def _headers(segment: Path) -> Iterator[tuple[Header, int]]:
    with FrameReader(segment) as reader:
        for found in reader.frames(lambda _: False, check_all=True):
            if isinstance(found, Frame) and found.header.kind != END:
                yield found.header, found.end
