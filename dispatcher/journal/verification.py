"""Verification of a journal: of its folder, of one segment byte by byte, and of the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, SNAPSHOT, START, Damage, Frame
from dispatcher.journal.format.history_index import HistoryIndex, UnsoundIndexError, index_path, segment_of
from dispatcher.journal.format.live_states import STATES_FILES, decode_states, decode_states_file
from dispatcher.journal.format.schema import TABLES
from dispatcher.journal.format.segments import MANIFEST, read_end, read_manifest, segment_number, segment_path
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.snapshot import JournalSnapshot, is_retired, look_at, open_frames, parts_of, unreadable
from dispatcher.util.files import read_file


class Verification(NamedTuple):
    """What `verify` found."""

    events: int
    transitions: int
    problems: tuple[str, ...]
    """One line each: segment, place and what is wrong; empty for a sound journal."""
    open_segments: tuple[Path, ...]
    """Segments that are being written, or were when their writer died."""
    torn: tuple[str, ...] = ()
    """Incomplete frames at the ends of open segments: cut off by a crash, or being written."""


class Finding(NamedTuple):
    """One problem of a journal."""

    segment: str
    """Name of a file in the journal's folder."""
    line: str
    """The message; names the segment, and the frame if there is one."""
    offset: int | None = None
    """In bytes; like `length` None if the finding is about the whole file."""
    length: int | None = None
    is_torn: bool = False
    """An incomplete frame at the end of an open segment, which is not a problem."""
    is_consequence: bool = False
    """It follows from another finding of the segment."""
    events: int | None = None
    """How many events are lost here; like `transitions` None: unknown."""
    transitions: int | None = None


class Progress:
    """Counts of the rows checked so far, and the seqs expected next; None accepts any."""

    def __init__(self) -> None:
        self.events = 0
        self.transitions = 0
        self.next_seq: int | None = None
        self.next_accepted: int | None = None
        self.summary: Summary | None = None
        """At the end of the segment that was checked last; None: the end is damaged."""


def verify(path: Path | str) -> Verification:
    """Check each byte against its checksum, and that no frame, segment, event or accepted event is missing.

    History indexes are checked where they exist, and can be missing. For a partitioned journal, this checks each
    partition, that none is missing, and the states of its entities.

    Raises:
        JournalError: it isn't a journal, has another format, or a file can't be read.
    """
    parts = parts_of(path)
    if not parts.is_partitioned:
        return _verify(parts.path)
    found = [(folder, _verify(folder)) for folder in parts.folders]
    return Verification(
        sum(each.events for _, each in found),
        sum(each.transitions for _, each in found),
        (
            *parts.problems,
            *_check_states_files(parts.path),
            *(parts.named(folder, line) for folder, each in found for line in each.problems),
        ),
        tuple(segment for _, each in found for segment in each.open_segments),
        tuple(parts.named(folder, line) for folder, each in found for line in each.torn),
    )


def _verify(path: Path) -> Verification:
    snapshot = look_at(path)
    manifest, closed = snapshot.manifest, snapshot.closed
    progress = Progress()
    if manifest is not None and manifest.first == 1 and (not closed or segment_number(closed[0]) == 1):
        progress.next_seq = progress.next_accepted = 1
    problems = [finding.line for finding in check_folder(snapshot)]
    torn: list[str] = []
    for segment in sorted((*closed, *snapshot.left_open), key=segment_number):
        try:
            for finding in check_segment(segment, progress, is_open=segment in snapshot.left_open):
                (torn if finding.is_torn else problems).append(finding.line)
        except FileNotFoundError:
            # Retention has removed it since it was listed: any seq may follow.
            progress.next_seq = progress.next_accepted = None
            if not is_retired(snapshot.path, segment_number(segment)):
                problems.append(f"{segment.name}: is missing")
        except OSError as error:
            raise unreadable(segment, error) from error
    problems += _check_indexes(snapshot)
    return Verification(progress.events, progress.transitions, tuple(problems), snapshot.left_open, tuple(torn))


def _check_states_files(path: Path) -> Iterator[str]:
    """A line for each damaged file of the states with which a partitioned journal's last run began."""
    for file in sorted(path.glob(STATES_FILES)):
        try:
            decode_states_file(read_file(file))
        except OSError as error:
            raise unreadable(file, error) from error
        except ValueError as error:
            yield f"{file.name}: {error}"


def check_folder(snapshot: JournalSnapshot) -> list[Finding]:
    """Findings about the manifest, and about missing and odd segments.

    Raises:
        JournalError: an open segment cannot be read.
    """
    lines = [snapshot.problem] if snapshot.problem is not None else []
    if snapshot.manifest is None and snapshot.problem is None:
        lines.append(f"{MANIFEST}: is missing")
    return [
        *(Finding(line.partition(":")[0], line) for line in (*lines, *snapshot.missing())),
        *(Finding(line.partition(":")[0], line, events=0, transitions=0) for line in snapshot.odd),
        *(Finding(line.partition(":")[0], line) for line in _against_manifest(snapshot)),
    ]


def _check_indexes(snapshot: JournalSnapshot) -> Iterator[str]:
    """A line for each history index that is damaged, was made of another segment, or has lost its segment."""
    for segment in snapshot.closed:
        try:
            with HistoryIndex(index_path(segment)) as index:
                end = read_end(segment)
                if end is None:
                    continue  # verified as damaged already; without its end, the index cannot be matched to it
                if not index.header.is_of(segment, end):
                    yield _unsound_index(f"{index.path.name}: was made of another {segment.name}")
                index.check()
        except FileNotFoundError:
            continue  # not indexed yet, or removed with its segment
        except UnsoundIndexError as error:
            yield _unsound_index(str(error))
        except OSError as error:
            yield _unsound_index(f"{index_path(segment).name}: cannot be read: {error.strerror or error}")
    first = snapshot.manifest.first if snapshot.manifest is not None else 0
    for path in sorted(snapshot.path.iterdir()):
        lost = segment_of(path)
        # Below `first`, retention is about to remove the index, or a crash prevented that.
        if lost is not None and segment_number(lost) >= first and not lost.exists():
            yield f"{path.name}: its segment is missing"


def _unsound_index(line: str) -> str:
    return f"{line}; the journal can be read without it, and dispatcher journal history makes a new one"


def _against_manifest(snapshot: JournalSnapshot) -> list[str]:
    """Where the segments contradict each other or the manifest; nothing if a writer has changed it meanwhile."""
    found = list(_contradictions(snapshot))
    return found if not found or read_manifest(snapshot.path)[0] == snapshot.manifest else []


def _contradictions(snapshot: JournalSnapshot) -> Iterator[str]:
    manifest = snapshot.manifest
    last = max(map(segment_number, (*snapshot.closed[-1:], *snapshot.left_open[-1:])), default=0)
    for segment in snapshot.left_open:
        if segment_number(segment) < last:
            yield f"{segment.name}: is open, but segment {last} was begun after it"
    if manifest is None:
        return
    allowed = manifest.last if manifest.closed else manifest.last + 1
    numbers = list(map(segment_number, snapshot.closed))
    before = [number for number in numbers if number < manifest.first]
    # The one before the first may be about to be removed, or a crash prevented its removal.
    for number in before if before != [manifest.first - 1] else ():
        yield f"{segment_path(snapshot.path, number).name}: the manifest begins at {manifest.first}"
    for segment, number in zip(snapshot.closed, numbers, strict=True):
        if number > allowed:
            yield f"{segment.name}: the manifest ends at {manifest.last}"
    if manifest.closed:
        for segment in filter(_is_begun, snapshot.left_open):
            yield f"{segment.name}: is open, and the manifest says that all are closed"
    elif not snapshot.left_open and allowed not in numbers:
        yield f"segment {allowed}: is missing: the manifest says that it is being written"


def _is_begun(segment: Path) -> bool:
    """Whether an open segment holds more than its START frame."""
    try:
        with open_frames(segment) as reader:
            frames = reader.frames(lambda _: False)
            return any(isinstance(found, Frame) and found.header.kind != START for found in frames)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreadable(segment, error) from error


def check_segment(segment: Path, progress: Progress, *, is_open: bool = False) -> Iterator[Finding]:
    """Check each byte of a segment and each frame's place and numbers, and add its rows to `progress`.

    Raises:
        OSError: it cannot be read.
    """
    name, frames, last, is_damaged, is_cut = segment.name, 0, 0, False, False
    progress.summary = None
    before = progress.events, progress.transitions
    with open_frames(segment) as reader:
        for found in reader.frames():
            if isinstance(found, Damage):
                is_damaged, is_cut = True, found.at_end
                is_torn = is_open and found.at_end
                lost = found.events, found.transitions
                yield Finding(name, str(found), found.offset, found.length, is_torn, False, *lost)
                continue
            where, length = f"{name}, frame {found.header.number}", found.end - found.offset
            if last == END:
                yield Finding(name, f"{where}: comes after the end", found.offset, length)
            frames, last = found.header.number + 1, found.header.kind
            for problem, gap in _out_of_order(found, progress):
                yield Finding(name, f"{where}: {problem}", found.offset, length, False, is_damaged, gap)
            try:
                if last == END:
                    for problem, events, transitions in _lost_rows(found, before, progress):
                        line = f"{where}: {problem}"
                        yield Finding(name, line, found.offset, length, False, is_damaged, events, transitions)
                else:
                    for problem in _unfit(found, segment, progress):
                        yield Finding(name, f"{where}: {problem}", found.offset, length)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                problem = f"cannot be read: {type(error).__name__}: {error}"
                yield Finding(name, f"{where}: {problem}", found.offset, length)
        if is_open:
            return
        if last != END:
            yield Finding(name, f"{name}: has no end", is_consequence=is_cut)
        if reader.last_frame() is None:
            yield Finding(
                name, f"{name}: its trailer does not point to its end", is_consequence=is_damaged or last != END
            )
        if not frames:
            yield Finding(name, f"{name}: has no intact frame", is_consequence=True)


def is_whole(segment: Path) -> bool:
    """Whether a closed segment has no findings by itself. Raises OSError."""
    return next(check_segment(segment, Progress()), None) is None


def _out_of_order(frame: Frame, progress: Progress) -> Iterator[tuple[str, int | None]]:
    """Check that the frame's first seq follows the previous frame; with each problem, how many events are between."""
    header = frame.header
    if header.kind == ROWS:
        for problem in _order("seq", header.first_seq, progress.next_seq):
            gap = header.first_seq - (progress.next_seq or 0)
            yield problem, gap if gap > 0 else None
        progress.next_seq = header.first_seq + header.events
    elif header.kind == ACCEPTED:
        for problem in _order("accepted seq", header.first_seq, progress.next_accepted):
            yield problem, 0
        progress.next_accepted = header.first_seq + header.events


def _order(what: str, found: int, expected: int | None) -> Iterator[str]:
    if expected is not None and found != expected:
        yield f"{what} {found} follows {expected - 1}"


def _unfit(frame: Frame, segment: Path, progress: Progress) -> Iterator[str]:
    """Contradictions between a payload and its header. Raises ValueError, KeyError, TypeError: it cannot be read."""
    header = frame.header
    if header.kind == ROWS:
        payload = decode_rows(frame.payload)
        counts = tuple(map(payload.rows_of, TABLES))
        if counts != (header.events, header.transitions):
            yield f"has {counts} rows, but its header says {(header.events, header.transitions)}"
        else:
            yield from payload.misfits(header)
        progress.events += header.events
        progress.transitions += header.transitions
    elif header.kind == START:
        number = json.loads(frame.payload)["segment"]
        if number != segment_number(segment) or header.number:
            yield f"is the start of segment {number}"
    elif header.kind == SNAPSHOT:
        decode_states(frame.payload)
    elif header.kind != ACCEPTED:
        yield f"is of the unknown kind {header.kind}"


def _lost_rows(end: Frame, before: tuple[int, int], progress: Progress) -> Iterator[tuple[str, int, int]]:
    """Compare the segment's rows with the counts in its END frame; with the problem, the difference. Raises as
    `_unfit`."""
    had = progress.summary = Summary(**json.loads(end.payload))
    events, transitions = progress.events - before[0], progress.transitions - before[1]
    if (had.events, had.transitions) != (events, transitions):
        line = f"the segment had {had.events} events and {had.transitions} transitions, now {events} and {transitions}"
        yield line, had.events - events, had.transitions - transitions
