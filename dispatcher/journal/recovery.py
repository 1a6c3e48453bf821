"""Recovery after a crash: closes the open segment after its last intact frame, and finds the unhandled events."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import JournalError, JournalLossError
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, Damage, Frame
from dispatcher.journal.format.outstanding import Accepted, Loss, Outstanding
from dispatcher.journal.format.partitions import partition_number, read_partitions
from dispatcher.journal.format.segments import (
    MANIFEST,
    Manifest,
    close_left_open,
    holds_journal,
    is_open_segment,
    lock_for_writing,
    open_segments,
    read_manifest,
    read_summary,
    segment_number,
    segments,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.identity import identify, new_id
from dispatcher.journal.read import frames_in, headers_only, read_outstanding
from dispatcher.journal.snapshot import Parts, parts_of
from dispatcher.journal.verification import is_whole
from dispatcher.util.figures import counted
from dispatcher.util.files import Permissions, explain, set_aside


class Recovered(NamedTuple):
    """A repaired journal, and where its next writer continues. By default, a new journal."""

    summary: Summary = Summary(1)
    """Summary of the last segment. No other segment has a greater accepted seq."""
    first_segment: int = 1
    next_segment: int = 1
    accepted: tuple[Accepted, ...] = ()
    """Events accepted but not handled, oldest first."""
    done: tuple[str, ...] = ()
    """The repairs, one line each."""
    journal_id: str = ""
    """Id for the journal's manifest and further segments."""
    losses: tuple[Loss, ...] = ()
    """Events accepted, but neither handled nor in any file."""


def recover(path: Path | str) -> Recovered:
    """Repair the journal of a dead writer: cut the incomplete end off its open segment, and close the segment.

    No intact frame is lost. Unexpected files are renamed, never removed: an open segment next to a closed one of its
    number, or a segment or manifest of another journal. Idempotent. Lost accepted events stay lost. Each recovery
    reports them, until a writer whose `on_loss` is `start` continues the journal.

    In a partitioned journal, each partition is repaired. The result has the unhandled events and the losses of all, and
    nothing about the next writer.

    Raises:
        JournalError: there's no journal, it's being written, or it can't be written.
    """
    parts = parts_of(path)
    return _recover_partitions(parts) if parts.is_partitioned else _recover(parts.path)


def _recover_partitions(parts: Parts) -> Recovered:
    partitions, _ = read_partitions(parts.path)
    move = None if partitions is None else partitions.move
    accepted: list[Accepted] = []
    done: list[str] = []
    losses = [Loss(name, 1, 1, None) for name in parts.missing]
    for folder in parts.folders:
        found, number = _recover(folder), partition_number(folder)
        accepted += (each for each in found.accepted if move is None or move.counts(number, each.seq))
        done += (parts.named(folder, line) for line in found.done)
        losses += (loss._replace(segments=parts.named(folder, loss.segments)) for loss in found.losses)
    return Recovered(accepted=tuple(accepted), done=tuple(done), losses=tuple(losses))


def _recover(path: Path) -> Recovered:
    if not path.is_dir():
        raise JournalError(f"{path}: no such journal folder")
    try:
        if not holds_journal(path):
            raise JournalError(f"{path}: not a journal: it has no segments")
        lock = lock_for_writing(path)
        try:
            mode = Permissions.of_file(path / MANIFEST).file_mode
            recovered = repair(path, accepts_losses=True)
            manifest = Manifest(recovered.first_segment, recovered.next_segment - 1, True, recovered.journal_id)
            if recovered.done or read_manifest(path)[0] != manifest:
                manifest.write(path, sync=True, mode=mode)
        finally:
            lock.release()
    except OSError as error:
        raise JournalError(f"{path}: cannot be recovered: {explain(error, path)}") from error
    return recovered


def repair(path: Path, *, accepts_losses: bool) -> Recovered:
    """`recover`, for a caller that holds the lock and writes the manifest.

    Raises:
        JournalLossError: accepted events are lost, and not `accepts_losses`; nothing was changed.
        OSError, JournalError: as `recover`.
    """
    return _Repair(path).run(accepts_losses=accepts_losses)


class _Repair:
    """One repair of a folder, for one thread. It looks at everything before it changes anything."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mode = Permissions.of_file(path / MANIFEST).file_mode
        self._steps: list[str | tuple[Path, str]] = []  # lines of what is found; files to set aside, and why
        self._done: list[str] = []
        self._without_rows: list[tuple[Path, int]] = []  # open segments, and how many bytes their torn ends have
        self._manifest, problem = read_manifest(path)
        if problem is not None:
            self._steps.append(problem)
            self._set_aside(path / MANIFEST)
        listed = (*segments(path), *open_segments(path))
        identity = identify(self._manifest, listed)
        if identity.manifest_problem is not None:
            self._manifest = None
            self._set_aside(path / MANIFEST, identity.manifest_problem)
        for segment, id in identity.foreign.items():
            self._set_aside(segment, f"{segment.name}: is of another journal, {id}")
        self._id = identity.id or new_id()
        self._own = [segment for segment in listed if segment not in identity.foreign]

    def run(self, *, accepts_losses: bool) -> Recovered:
        self._one_of_each_number()
        last = self._manifest.last if self._manifest is not None else 0
        first = self._first()
        own = sorted(self._own, key=segment_number)
        closed = [segment for segment in own if not is_open_segment(segment)]
        if closed and self._manifest is not None and segment_number(closed[-1]) > last + (not self._manifest.closed):
            self._steps.append(f"{MANIFEST}: ended at segment {last}, and {closed[-1].name} is here")
        outstanding, damages = self._read(own, closed, first)
        losses = outstanding.losses()
        if losses and not accepts_losses:
            raise JournalLossError(self._path, losses)
        self._take_steps()
        closed = []
        for segment in own:
            new = self._close(segment, closed, outstanding, damages[segment]) if is_open_segment(segment) else segment
            closed += [new] if new is not None else []
        last = max((last, *map(segment_number, closed)))
        self._drop_those_without_rows(first, last)
        summary = _summary_after(closed)
        if outstanding.next_seq() > summary.next_accepted:  # the last segment is damaged
            summary = summary._replace(accepted=outstanding.next_seq() - summary.first_accepted)
        return Recovered(summary, first, last + 1, outstanding.accepted(), tuple(self._done), self._id, losses)

    def _read(self, own: list[Path], closed: list[Path], first: int) -> tuple[Outstanding, dict[Path, list[Damage]]]:
        """Read what recovery needs: the unhandled events, and the damages of the segments that are open."""
        last_intact = next(filter(None, map(read_summary, reversed(closed))), None)
        start = max(first, last_intact.recover_from if last_intact is not None else 0)
        if last_intact is not None and self._manifest is not None and last_intact.recover_from < first:
            # Retention has removed segments that were still needed when this one was closed. It removes a segment only
            # once all its events are handled, so nothing before the first segment is outstanding.
            last_intact = last_intact._replace(outstanding_from=0)
        before = next((read_summary(segment) for segment in closed if segment_number(segment) == start - 1), None)
        outstanding = Outstanding(self._path, start, last_intact, Summary(1) if start == 1 else before)
        damages: dict[Path, list[Damage]] = {}
        for segment in own:
            is_open = is_open_segment(segment)
            if segment_number(segment) >= start:
                damages[segment] = read_outstanding(outstanding, segment)
            elif is_open:
                damages[segment] = read_outstanding(Outstanding(self._path, 0), segment)
        if self._manifest is not None:
            outstanding.end(self._manifest.last + (not self._manifest.closed))
        return outstanding, damages

    def _take_steps(self) -> None:
        for step in self._steps:
            if isinstance(step, str):
                self._done.append(step)
                continue
            file, why = step
            self._done.append(f"{why or file.name}: set aside as {set_aside(file).name}")

    def _set_aside(self, file: Path, why: str = "") -> None:
        self._steps.append((file, why))

    def _one_of_each_number(self) -> None:
        """Of an open and a closed segment of one number, keep the closed one, unless it is damaged and has less."""
        closed = {segment_number(segment): segment for segment in self._own if not is_open_segment(segment)}
        for segment in [segment for segment in self._own if is_open_segment(segment)]:
            other = closed.get(segment_number(segment))
            if other is None:
                continue
            left = segment
            why = f"{segment.name}: is stale: {other.name} is closed"
            if not is_whole(other) and _intact_frames(segment) > _intact_frames(other):
                left = other
                why = f"{other.name}: is damaged, and {segment.name} has more of it"
            self._own.remove(left)
            self._set_aside(left, why)

    def _first(self) -> int:
        """Number of the journal's first segment. Those that follow on to the manifest's first one are kept."""
        numbers = sorted(map(segment_number, self._own))
        if self._manifest is None:
            return min(numbers, default=1)
        first = listed = self._manifest.first
        while first - 1 in numbers:
            first -= 1
        if first < listed:
            self._steps.append(
                f"{MANIFEST}: began at segment {listed}; segment {first} and the following ones are here"
            )
        elif numbers and numbers[-1] < listed:
            why = (
                f"{MANIFEST}: is of another state of the journal: begins at segment {listed}, the last is {numbers[-1]}"
            )
            self._set_aside(self._path / MANIFEST, why)
            return numbers[0]
        for segment in [segment for segment in self._own if segment_number(segment) < first]:
            self._own.remove(segment)
            self._set_aside(segment, f"{segment.name}: is of another state of the journal, which begins at {first}")
        return first

    def _close(self, segment: Path, closed: list[Path], outstanding: Outstanding, damages: list[Damage]) -> Path | None:
        """Close a segment that was left open behind these closed ones; None if it has no rows."""
        number = segment_number(segment)
        follows = number == (segment_number(closed[-1]) if closed else 0) + 1
        summary, keep = _scan(segment, _summary_after(closed), follows=follows)
        cut = segment.stat().st_size - keep
        if summary.frames <= 1:
            self._without_rows.append((segment, cut))
            return None
        recover_from = outstanding.oldest_segment() or number + 1
        new = close_left_open(segment, keep, summary.closed(recover_from, outstanding.oldest_seq()))
        self._done += [f"{damage}: skipped" for damage in damages if damage.is_problem]
        self._done.append(f"{new.name}: closed: kept {counted(summary.events, 'event')}, cut {cut} bytes")
        return new

    def _drop_those_without_rows(self, first: int, last: int) -> None:
        """Take segments without rows out of the folder; before, the manifest, which promises an open segment."""
        if self._without_rows:
            Manifest(first, last, closed=True, journal=self._id).write(self._path, sync=True, mode=self._mode)
        for segment, cut in self._without_rows:
            if cut:
                why = f"{segment.name}: has no intact frame but its start"
                self._done.append(f"{why}: set aside as {set_aside(segment).name}")
            else:
                segment.unlink()  # nothing was written to it but its start, which its name repeats


def _summary_after(closed: list[Path]) -> Summary:
    """The summary of the last closed segment, rebuilt from its intact frames if its end is damaged."""
    damaged: list[Path] = []
    summary = None
    for segment in reversed(closed):
        summary = read_summary(segment)
        if summary is not None:
            break
        damaged.append(segment)
    last = segment_number(closed[-len(damaged) - 1]) if summary is not None else 0
    summary = summary or Summary(1)
    for segment in reversed(damaged):
        number = segment_number(segment)
        summary, last = _scan(segment, summary, follows=number == last + 1)[0], number
    return summary


def _scan(segment: Path, before: Summary, *, follows: bool) -> tuple[Summary, int]:
    """A summary of a segment's intact frames without END, and the offset at which the last of them ends.

    `follows`: `before` is of the segment before it; otherwise the frames say where seqs and accepted seqs begin.
    """
    summary, keep = before.following(), 0
    for found in frames_in(segment, headers_only, check_all=True):
        if isinstance(found, Damage) or found.header.kind == END:
            continue
        header, keep = found.header, found.end
        next_seq = header.first_seq + header.events
        if header.kind == ROWS:
            if not (follows or summary.events):
                summary = summary._replace(first_seq=max(summary.first_seq, header.first_seq))
            summary = summary.with_rows(header, next_seq)
        elif header.kind == ACCEPTED:
            if not (follows or summary.accepted):
                summary = summary._replace(first_accepted=max(summary.first_accepted, header.first_seq))
            summary = summary._replace(accepted=max(0, next_seq - summary.first_accepted))
        summary = summary._replace(frames=max(summary.frames, header.number + 1))
    return summary, keep


def _intact_frames(segment: Path) -> int:
    """How many intact frames the segment has, without START and END."""
    frames = frames_in(segment, headers_only, check_all=True)
    return sum(isinstance(frame, Frame) and frame.header.kind in (ROWS, ACCEPTED) for frame in frames)
