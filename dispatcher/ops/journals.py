"""Journals in the ops API: the last events, and how many entities were in which state at a moment.

Everything here reads files on the calling thread while the writer goes on, and checks a deadline between frames.
"""

from __future__ import annotations

import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.conditions import Conditions
from dispatcher.journal.format.columns import decode_rows, encode_text
from dispatcher.journal.format.frames import ROWS, Frame
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS, Table
from dispatcher.journal.read import reporting, rows
from dispatcher.journal.snapshot import look_at, open_segment
from dispatcher.ops.answers import MOST_SEQ, Answer, Gets, Page, UnixMs, Whole
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.service import ServiceState
from dispatcher.util.units import NS_PER_MS, NS_PER_S
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import limit_of, number

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView

SCAN_S: Final = 9.5
"""Longest time to read a journal; the web host gives a request 10 seconds."""
_SEQ: Final = re.compile(r"[0-9]{1,18}")
_UNIX: Final = re.compile(r"@([0-9]{1,10})(?:\.([0-9]{1,9}))?")
_ROWS_AT_ONCE: Final = 64
"""Rows decoded in one call."""


def journaled_view(views: Sequence[DispatcherView], name: str | None) -> tuple[DispatcherView, Path]:
    """The dispatcher `name`, and its journal; None: the only one that has one. Raises Refusal."""
    found = {view.name: (view, view.journal_path) for view in views if view.journal_path is not None}
    known = ", ".join(found) or "none"
    if name is not None:
        if name not in found:
            raise Refusal(404, f"dispatcher {name!r} has no journal; dispatchers with a journal: {known}")
        return found[name]
    if not found:
        raise Refusal(404, "no dispatcher of this process has a journal")
    # One that has ended does not make the question ambiguous.
    started = {name: each for name, each in found.items() if each[0].state is ServiceState.STARTED}
    meant = started or found
    if len({path for _, path in meant.values()}) > 1:
        raise Refusal(400, f"several dispatchers have a journal; choose dispatcher={' or dispatcher='.join(meant)}")
    return next(iter(meant.values()))


class WantedEvents(NamedTuple):
    """Which events; None: any."""

    event_class: str | None = None
    event_type: str | None = None
    entity: str | None = None
    before_seq: int | None = None
    sight: Sight = WHOLE
    """Rows about entities that the user may not see are left out. Rows about no entity are shown."""

    def matches(self, row: dict[str, Any]) -> bool:
        return (
            (self.before_seq is None or row["seq"] < self.before_seq)
            and (self.event_class is None or row["event_class"] == self.event_class)
            and (self.event_type is None or row["event_type"] == self.event_type)
            and (self.entity is None or row.get("entity") == self.entity)
            and (row.get("entity") is None or self.sight.sees(row["entity"]))
        )


class ScanDeadline:
    """Ends a scan with a Refusal (503)."""

    def __init__(self, within_s: float = SCAN_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._within_s = within_s
        self._ends_s = clock_s() + within_s

    @property
    def has_passed(self) -> bool:
        return self._clock_s() >= self._ends_s

    def check(self, advice: str) -> None:
        if self.has_passed:
            raise Refusal(503, f"the journal was not read within {self._within_s:g} s; {advice}", {"Retry-After": "10"})


def tail_rows(
    path: Path, limit: int, wanted: WantedEvents, after_seq: int | None, deadline: ScanDeadline, *, payloads: bool
) -> list[dict[str, Any]]:
    """Events by seq: the last `limit` that match; with `after_seq` the first that follow it.

    Errors and payloads are for those who may see everything: they can contain anything.

    Raises:
        JournalError: it cannot be read. Refusal: the deadline has passed (503).
    """
    if after_seq is None:
        check = partial(deadline.check, "ask for fewer events, or for more frequent ones")
        newest = _newest_events(path, wanted, check)
        found = list(islice(filter(wanted.matches, newest), limit))[::-1]
    else:
        events = _rows(path, EVENTS, Conditions({"seq": (after_seq + 1, None)}), deadline, "ask for less")
        found = list(islice((row for row in events if row["seq"] > after_seq and wanted.matches(row)), limit))
    if not wanted.sight.is_whole:
        found = [{**row, "error": None} for row in found]
    elif payloads:
        return AcceptedFields(path).complete(found)
    return [{name: row[name] for name in row if name != "payload"} for row in found]


def _newest_events(path: Path, wanted: WantedEvents, check: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Events, newest first. Most that are not wanted are left out, and damage is passed over.

    Frames of events are searched for by their marks: in write-ahead mode most frames are of accepted events.
    """
    named = {"event_class": wanted.event_class, "event_type": wanted.event_type}
    kinds = Conditions(values={name: frozenset((value,)) for name, value in named.items() if value is not None})
    for segment in reversed(look_at(path).in_order):
        with open_segment(segment) as reader:
            if reader is None:
                continue
            offsets = array("Q")
            for frame in reader.frames_of(ROWS):
                check()
                if wanted.before_seq is None or frame.header.first_seq < wanted.before_seq:
                    offsets.append(frame.offset)
            for offset in reversed(offsets):
                check()
                again = reader.frame_at(offset)
                if again is not None:
                    yield from _newest_of(again, kinds, wanted.entity)


def _newest_of(frame: Frame, kinds: Conditions, entity: str | None) -> Iterator[dict[str, Any]]:
    payload = decode_rows(frame.payload)
    if not kinds.can_hold_kinds(EVENTS, payload):
        return
    places: Sequence[int] = range(payload.rows_of(EVENTS))
    if entity is not None:
        found = payload.rows_with(EVENTS, EVENTS.column("entity"), encode_text(entity))
        places = [place for some in found for place in some]
    for end in range(len(places), 0, -_ROWS_AT_ONCE):
        some = places[max(0, end - _ROWS_AT_ONCE) : end]
        yield from reversed(list(payload.rows(EVENTS, frame.header.first_seq, some)))


class MomentLimit(NamedTuple):
    """Inclusive; None: no limit."""

    seq: int | None = None
    at: int | None = None
    """Unix ns."""


def parse_moment(text: str | None) -> MomentLimit:
    """A seq, a time in ISO 8601 (UTC if it names no zone), or @ and Unix seconds. Raises Refusal (400)."""
    if text is None:
        return MomentLimit()
    if _SEQ.fullmatch(text):
        return MomentLimit(seq=int(text))
    unix = _UNIX.fullmatch(text)
    if unix is not None:
        return MomentLimit(at=int(unix[1]) * NS_PER_S + int((unix[2] or "").ljust(9, "0")))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Refusal(
            400, f"at={text}: expected a seq (12345), a time (2026-11-21T10:00:00Z) or @ and Unix seconds"
        ) from None
    return MomentLimit(
        at=(since_epoch.days * 86_400 + since_epoch.seconds) * NS_PER_S + since_epoch.microseconds * 1000
    )


class States(Answer):
    """`/journal/state`: how many entities each machine had in each state."""

    seq: Whole | None = None
    """Of the last transition that counts, as `at`."""
    at: UnixMs | None = None
    is_end: bool = True
    """Whether it is the journal's last."""
    machines: dict[str, dict[str, Whole]] = {}


def states_at(path: Path, moment: MomentLimit, deadline: ScanDeadline) -> States:
    """How many entities each machine had in each state once all up to the moment was done.

    Raises:
        JournalError: it cannot be read. Refusal: the deadline has passed (503).
    """
    states: dict[tuple[str, str], str] = {}
    last_seq = last_at = None
    is_end = True
    columns = ("seq", "machine", "entity", "to_state", "at")
    for row in _rows(path, TRANSITIONS, Conditions(), deadline, "ask for less", columns):
        if (moment.seq is not None and row["seq"] > moment.seq) or (moment.at is not None and row["at"] > moment.at):
            is_end = False
            break
        last_seq, last_at = row["seq"], row["at"]
        states[row["machine"], row["entity"]] = row["to_state"]
    counts: dict[str, Counter[str]] = {}
    for (machine, _), state in states.items():
        counts.setdefault(machine, Counter())[state] += 1
    return States(
        seq=last_seq,
        at=None if last_at is None else last_at // NS_PER_MS,
        is_end=is_end,
        machines={machine: dict(sorted(counts[machine].items())) for machine in sorted(counts)},
    )


def _rows(
    path: Path,
    table: Table,
    where: Conditions,
    deadline: ScanDeadline,
    advice: str,
    columns: tuple[str, ...] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of the frames that may match. Damaged frames are skipped."""
    journal, check = look_at(path), partial(deadline.check, advice)
    check()
    found = rows(journal, table, where=where, columns=columns, completes=False, on_frame=check)
    return reporting(found, lambda line: None)


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _tail(ops: Ops, request: Request) -> Page[dict[str, Any]]:
    query, limit = request.query_params, limit_of(request)
    after_seq = number(request, "after_seq", None, 0, MOST_SEQ)
    sight, entity = await ops.sight(request), query.get("entity")
    if entity is not None:
        sight.check(entity)
    before_seq = number(request, "before_seq", None, 0, MOST_SEQ)
    wanted = WantedEvents(query.get("event_class"), query.get("event_type"), entity, before_seq, sight)
    _, path = journaled_view(ops.views(), query.get("dispatcher"))
    read = partial(tail_rows, path, limit, wanted, after_seq, payloads=ops.config.show_payloads)
    rows = await ops.workers.run(lambda: read(ScanDeadline()))
    return Page(items=rows, next=str(rows[-1]["seq"]) if rows else None, total=None)


async def _state(ops: Ops, request: Request) -> States:
    moment = parse_moment(request.query_params.get("at"))
    _, path = journaled_view(ops.views(), request.query_params.get("dispatcher"))
    return await ops.scans.run(lambda: states_at(path, moment, ScanDeadline()))


GETS: Final[Gets] = {"/journal/tail": _tail, "/journal/state": _state}
