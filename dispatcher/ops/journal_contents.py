"""The files of a journal in the ops API: its segments, what is damaged, and what was accepted and not handled.

Everything here reads files on the calling thread while the writer goes on, and checks a deadline between frames or
segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.event_codec import marks_of
from dispatcher.journal.format.frames import ACCEPTED, ROWS, Frame
from dispatcher.journal.format.segments import is_open_segment, segment_number, set_aside_files
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.read import Wanted, frames_in, of_kinds
from dispatcher.journal.snapshot import JournalSnapshot, look_at, summarize, unreadable
from dispatcher.journal.verification import Progress, check_folder, check_segment
from dispatcher.ops.answers import MOST_SEQ, Answer, Gets, Page, UnixMs, Whole
from dispatcher.ops.journals import ScanDeadline, journaled_view
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.util.units import NS_PER_MS
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import limit_of, number

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView

_SEGMENTS_SHOWN: Final = 50
_PROBLEMS_SHOWN: Final = 100
CHECK_S: Final = 5.0
"""A check stops after the segment in which this time has passed."""
_MOST_ACCEPTED: Final = 20_000_000
"""Accepted events since the oldest one that is not handled: a byte each while they are looked through."""


class SegmentNow(Answer):
    """A segment of a journal. What only its end says is None while it is written, and where it is damaged."""

    number: Whole
    bytes: Whole = 0
    is_open: bool = False
    is_damaged: bool = False
    """It is closed, and its end is not intact."""
    first_seq: Whole | None = None
    events: Whole | None = None
    transitions: Whole | None = None
    accepted: Whole | None = None
    since: UnixMs | None = None
    """Of its first row, as `until` of its last."""
    until: UnixMs | None = None


class JournalDetails(Answer):
    """`/journal`."""

    dispatcher: str
    path: str = ""
    write_ahead: bool = False
    durability: str = ""
    failed: bool = False
    bytes: Whole = 0
    segments: list[SegmentNow] = []
    """The newest, newest first."""
    segments_total: Whole = 0
    outstanding: Whole | None = None
    """Events that were accepted and not handled; None: the journal is no write-ahead log."""
    problems: list[str] = []
    """A line for each file that is missing, damaged at its end, or of another journal."""
    losses: list[str] = []
    """A line for each stretch of accepted events that the start has found to be lost."""
    set_aside: list[str] = []
    """Files that recovery has set aside."""


class JournalCheck(Answer):
    """`/journal/check`: what a check of each byte has found."""

    segments: Whole = 0
    events: Whole = 0
    transitions: Whole = 0
    problems: list[str] = []
    problems_total: Whole = 0
    torn: list[str] = []
    """Incomplete frames at the ends of open segments: cut off by a crash, or being written."""
    next: Whole | None = None
    """The segment with which to go on. None: all were checked."""


class OutstandingEvent(Answer):
    """One of `/journal/outstanding`: an event that was accepted, and that no row says was handled."""

    seq: Whole
    """Its number in the order of acceptance."""
    accepted_at: UnixMs | None = None
    due: UnixMs | None = None
    """It is to be handled then."""
    attempt: Whole = 1
    key: str = ""
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None


def journal_details(view: DispatcherView, path: Path) -> JournalDetails:
    """The answer of /journal. Raises JournalError: it cannot be read."""
    journal, config, stats = look_at(path), view.journal_config, view.stats()
    shown = journal.in_order[-_SEGMENTS_SHOWN:]
    closed = {each.path: each for each in summarize([each for each in shown if not is_open_segment(each)])}
    segments = [
        _segment(each, _bytes_of(each), None)
        if is_open_segment(each)
        else _segment(each, closed[each].size, closed[each].summary)
        for each in reversed(shown)
        if is_open_segment(each) or not closed[each].is_gone
    ]
    problems = [each.line for each in check_folder(journal) if each.is_problem]
    problems += [f"segment {each.number}: its end is damaged" for each in segments if each.is_damaged]
    return JournalDetails(
        dispatcher=view.name,
        path=str(path),
        write_ahead=config is not None and config.write_ahead,
        durability=config.durability if config is not None else "",
        failed=view.journal_is_failed(),
        bytes=stats.journal_bytes or 0,
        segments=segments,
        segments_total=len(journal.in_order),
        outstanding=stats.journal_outstanding if config is not None and config.write_ahead else None,
        problems=problems[:_PROBLEMS_SHOWN],
        losses=[str(each) for each in view.journal_losses()[:_PROBLEMS_SHOWN]],
        set_aside=_set_aside(path),
    )


def _set_aside(path: Path) -> list[str]:
    try:
        return [each.name for each in set_aside_files(path)[:_PROBLEMS_SHOWN]]
    except OSError as error:
        raise unreadable(path, error) from error


def _segment(path: Path, size: int, summary: Summary | None) -> SegmentNow:
    if summary is None:
        is_open = is_open_segment(path)
        return SegmentNow(number=segment_number(path), bytes=size, is_open=is_open, is_damaged=not is_open)
    has_rows = summary.events or summary.transitions
    return SegmentNow(
        number=segment_number(path),
        bytes=size,
        first_seq=summary.first_seq,
        events=summary.events,
        transitions=summary.transitions,
        accepted=summary.accepted,
        since=summary.min_at // NS_PER_MS if has_rows else None,
        until=summary.max_at // NS_PER_MS if has_rows else None,
    )


def _bytes_of(segment: Path) -> int:
    try:
        return segment.stat().st_size
    except OSError:  # it was closed, and so renamed, meanwhile
        return 0


def check_journal(path: Path, after: int | None, deadline: ScanDeadline) -> JournalCheck:
    """The answer of /journal/check: from the segment of this number on, until the deadline has passed.

    Raises:
        JournalError: it cannot be read.
    """
    journal, progress = look_at(path), Progress()
    problems = [each.line for each in check_folder(journal) if each.is_problem] if after is None else []
    torn: list[str] = []
    count, following = 0, None
    for segment in sorted((*journal.closed, *journal.left_open), key=segment_number):
        if after is not None and segment_number(segment) < after:
            continue
        if count and deadline.has_passed:
            following = segment_number(segment)
            break
        for damage in check_segment(segment, progress):
            if damage.is_problem:
                problems.append(damage.line)
            elif damage.is_torn:
                torn.append(damage.line)
        count += 1
    return JournalCheck(
        segments=count,
        events=progress.events,
        transitions=progress.transitions,
        problems=problems[:_PROBLEMS_SHOWN],
        problems_total=len(problems),
        torn=torn[:_PROBLEMS_SHOWN],
        next=following,
    )


def outstanding_events(
    path: Path, limit: int, after: int, deadline: ScanDeadline, sight: Sight = WHOLE
) -> list[OutstandingEvent]:
    """The first accepted events behind the seq `after` that no row says were handled, oldest first.

    It keeps a byte for each event that was accepted since the oldest one that may not be handled, and no events.

    Raises:
        JournalError: it cannot be read. Refusal: the deadline has passed, or there are too many events (503).
    """
    journal, check = look_at(path), partial(deadline.check, "ask again when fewer events are outstanding")
    needed = _needed(journal)
    first, handled = _handled(needed, check)
    found = _lines(needed, first, handled, after, check)
    events = (event for each in found if (event := _event(each, sight)) is not None and sight.sees(event.entity))
    return list(islice(events, limit))


def _needed(journal: JournalSnapshot) -> list[Path]:
    """The segments from the first one on that recovery would read."""
    last = next((each.summary for each in summarize(journal.closed[-2:])[::-1] if each.summary is not None), None)
    first = last.recover_from if last is not None else 1
    return [segment for segment in journal.in_order if segment_number(segment) >= first]


def _handled(segments: list[Path], check: Callable[[], None]) -> tuple[int, bytearray]:
    """The first accepted seq, and for it and each that follows whether its event was handled."""
    first, handled = 0, bytearray()
    for frame in _frames(segments, (ACCEPTED, ROWS), of_kinds(ROWS), check):
        header = frame.header
        if header.kind == ACCEPTED:
            first = first or header.first_seq
            count = header.first_seq + header.events - first
            if count > _MOST_ACCEPTED:
                raise Refusal(503, f"{count:,} events were accepted since the oldest one that is not handled")
            handled.extend(bytes(max(0, count - len(handled))))
            continue
        for seq in decode_rows(frame.payload).no_longer_outstanding():
            if first <= seq < first + len(handled):
                handled[seq - first] = 1
    return first, handled


def _frames(segments: list[Path], kinds: tuple[int, ...], wanted: Wanted, check: Callable[[], None]) -> Iterator[Frame]:
    """The intact frames of these kinds; only those that are wanted have their payloads."""
    for segment in segments:
        for found in frames_in(segment, wanted):
            check()
            if isinstance(found, Frame) and found.header.kind in kinds:
                yield found


def _lines(
    segments: list[Path], first: int, handled: bytearray, after: int, check: Callable[[], None]
) -> Iterator[tuple[int, int, bytes]]:
    """Accepted seq, Unix ns and line of each event that was not handled."""
    for frame in _frames(segments, (ACCEPTED,), of_kinds(ACCEPTED), check):
        begin = frame.header.first_seq
        end = min(begin + frame.header.events, first + len(handled))
        if begin < first or end <= after or handled.find(0, begin - first, end - first) < 0:
            continue
        for seq, line in enumerate(frame.payload.split(b"\n"), begin):
            if after < seq < end and not handled[seq - first]:
                yield seq, frame.header.min_at, line


def _event(found: tuple[int, int, bytes], sight: Sight) -> OutstandingEvent | None:
    """None: nothing is to be handled, the line only holds when a `post_every` is due."""
    seq, at_ns, line = found
    try:
        marks = marks_of(line)
        said: dict[str, Any] = json.loads(line)
        fields = said.get("event")
    except (JournalError, ValueError, RecursionError):
        return OutstandingEvent(seq=seq, event_type="(cannot be read)")
    if not marks.has_event:
        return None
    entity = fields.get("entity") if isinstance(fields, dict) else None
    return OutstandingEvent(
        seq=seq,
        accepted_at=at_ns // NS_PER_MS if at_ns else None,
        due=marks.due_ns // NS_PER_MS if marks.due_ns else None,
        attempt=marks.attempt,
        key=(marks.timer or marks.key) if sight.is_whole else "",
        event_class=str(said.get("event_class", "")),
        event_type=str(said.get("event_type", "")),
        entity=None if entity is None else str(entity),
    )


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _journal(ops: Ops, request: Request) -> JournalDetails:
    view, path = journaled_view(ops.views(), request.query_params.get("dispatcher"))
    return await ops.workers.run(lambda: journal_details(view, path))


async def _check(ops: Ops, request: Request) -> JournalCheck:
    _, path = journaled_view(ops.views(), request.query_params.get("dispatcher"))
    after = number(request, "after", None, 0, MOST_SEQ)
    return await ops.scans.run(lambda: check_journal(path, after, ScanDeadline(CHECK_S)))


async def _outstanding(ops: Ops, request: Request) -> Page[OutstandingEvent]:
    _, path = journaled_view(ops.views(), request.query_params.get("dispatcher"))
    limit, after = limit_of(request), number(request, "after", 0, 0, MOST_SEQ)
    sight = await ops.sight(request)
    items = await ops.scans.run(lambda: outstanding_events(path, limit + 1, after, ScanDeadline(), sight))
    return Page(items=items[:limit], next=str(items[limit - 1].seq) if len(items) > limit else None, total=None)


GETS: Final[Gets] = {"/journal": _journal, "/journal/check": _check, "/journal/outstanding": _outstanding}
