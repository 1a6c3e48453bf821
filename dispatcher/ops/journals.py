"""Journals in the ops API: the last events, and how many entities were in which state at a moment.

Everything here reads files on the calling thread while the writer goes on, and checks a deadline between frames.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ROWS, Frame, Header
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.snapshot import look_at, open_frames_if_there, summarize
from dispatcher.ops.answers import MOST_SEQ, Answer, Gets, Page, UnixMs, Whole
from dispatcher.service import ServiceState
from dispatcher.util.units import NS_PER_S
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
_NS_PER_MS: Final = 1_000_000


def journal_of(views: Sequence[DispatcherView], name: str | None) -> Path:
    """The journal of the dispatcher `name`; None: the only one. Raises Refusal."""
    paths = {view.name: view.journal_path for view in views if view.journal_path is not None}
    known = ", ".join(paths) or "none"
    if name is not None:
        if name not in paths:
            raise Refusal(404, f"dispatcher {name!r} has no journal; dispatchers with a journal: {known}")
        return paths[name]
    if not paths:
        raise Refusal(404, "no dispatcher of this process has a journal")
    # One that has ended does not make the question ambiguous.
    started = {
        view.name: paths[view.name] for view in views if view.state is ServiceState.STARTED and view.name in paths
    }
    meant = started or paths
    if len(set(meant.values())) > 1:
        raise Refusal(400, f"several dispatchers have a journal; choose dispatcher={' or dispatcher='.join(meant)}")
    return next(iter(meant.values()))


class Wanted(NamedTuple):
    """Which events; None: any."""

    event_class: str | None = None
    event_type: str | None = None
    entity: str | None = None

    def matches(self, row: dict[str, Any]) -> bool:
        return (
            (self.event_class is None or row["event_class"] == self.event_class)
            and (self.event_type is None or row["event_type"] == self.event_type)
            and (self.entity is None or row.get("entity") == self.entity)
        )


class Deadline:
    """Ends a scan with a Refusal (503)."""

    def __init__(self, within_s: float = SCAN_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._within_s = within_s
        self._ends_s = clock_s() + within_s

    def check(self, advice: str) -> None:
        if self._clock_s() >= self._ends_s:
            raise Refusal(503, f"the journal was not read within {self._within_s:g} s; {advice}", {"Retry-After": "10"})


def tail_rows(
    path: Path, limit: int, wanted: Wanted, after_seq: int | None, deadline: Deadline, *, payloads: bool
) -> list[dict[str, Any]]:
    """Events by seq: the last `limit` that match; with `after_seq` the first that follow it.

    Raises:
        JournalError: it cannot be read. Refusal: the deadline has passed (503).
    """
    found = (
        _last(path, limit, wanted, deadline) if after_seq is None else _after(path, limit, wanted, after_seq, deadline)
    )
    if payloads:
        return AcceptedFields(path).complete(found)
    return [{name: row[name] for name in row if name != "payload"} for row in found]


def _last(path: Path, limit: int, wanted: Wanted, deadline: Deadline) -> list[dict[str, Any]]:
    found: deque[dict[str, Any]] = deque()
    for frame in _frames_backward(path, deadline):
        found.extendleft(row for row in reversed(list(_events(frame))) if wanted.matches(row))
        if len(found) >= limit:
            break
    return list(found)[-limit:]


def _after(path: Path, limit: int, wanted: Wanted, after_seq: int, deadline: Deadline) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for frame in _frames_forward(path, lambda each: each.first_seq + each.events > after_seq + 1, deadline):
        found += [row for row in _events(frame) if row["seq"] > after_seq and wanted.matches(row)]
        if len(found) >= limit:
            break
    return found[:limit]


class Moment(NamedTuple):
    """Inclusive; None: no limit."""

    seq: int | None = None
    at: int | None = None
    """Unix ns."""


def parse_moment(text: str | None) -> Moment:
    """A seq, a time in ISO 8601 (UTC if it names no zone), or @ and Unix seconds. Raises Refusal (400)."""
    if text is None:
        return Moment()
    if _SEQ.fullmatch(text):
        return Moment(seq=int(text))
    unix = _UNIX.fullmatch(text)
    if unix is not None:
        return Moment(at=int(unix[1]) * NS_PER_S + int((unix[2] or "").ljust(9, "0")))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Refusal(
            400, f"at={text}: expected a seq (12345), a time (2026-11-21T10:00:00Z) or @ and Unix seconds"
        ) from None
    return Moment(at=(since_epoch.days * 86_400 + since_epoch.seconds) * NS_PER_S + since_epoch.microseconds * 1000)


class States(Answer):
    """`/journal/state`: how many entities each machine had in each state."""

    seq: Whole | None = None
    """Of the last transition that counts, as `at`."""
    at: UnixMs | None = None
    is_end: bool = True
    """Whether it is the journal's last."""
    machines: dict[str, dict[str, Whole]] = {}


def states_at(path: Path, moment: Moment, deadline: Deadline) -> States:
    """How many entities each machine had in each state once all up to the moment was done.

    Raises:
        JournalError: it cannot be read. Refusal: the deadline has passed (503).
    """
    states: dict[tuple[str, str], str] = {}
    last_seq = last_at = None
    is_end = True
    for row in _transitions(path, deadline):
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
        at=None if last_at is None else last_at // _NS_PER_MS,
        is_end=is_end,
        machines={machine: dict(sorted(counts[machine].items())) for machine in sorted(counts)},
    )


def _transitions(path: Path, deadline: Deadline) -> Iterator[dict[str, Any]]:
    for frame in _frames_forward(path, lambda each: each.transitions > 0, deadline):
        yield from decode_rows(frame.payload).rows(TRANSITIONS, frame.header.first_seq)


def _events(frame: Frame) -> Iterator[dict[str, Any]]:
    return decode_rows(frame.payload).rows(EVENTS, frame.header.first_seq)


def _frames_forward(path: Path, wanted: Callable[[Header | Summary], bool], deadline: Deadline) -> Iterator[Frame]:
    """Intact frames with rows, oldest first. A closed segment is skipped if its summary is not wanted."""
    advice = "ask for less"
    for segment in look_at(path).in_order:
        [closed] = summarize([segment])
        deadline.check(advice)
        if closed.is_gone or (closed.summary is not None and not wanted(closed.summary)):
            continue
        with open_frames_if_there(segment) as reader:
            if reader is None:
                continue
            for found in reader.frames(lambda header: header.kind == ROWS and wanted(header)):
                deadline.check(advice)
                if isinstance(found, Frame) and found.payload:
                    yield found


def _frames_backward(path: Path, deadline: Deadline) -> Iterator[Frame]:
    """Intact frames with rows, newest first."""
    advice = "ask for fewer events, or for more frequent ones"
    for segment in reversed(look_at(path).in_order):
        with open_frames_if_there(segment) as reader:
            if reader is None:
                continue
            # The headers first: payloads are read only until there are enough events.
            headers = [each for each in reader.frames(lambda _: False) if isinstance(each, Frame)]
            for each in reversed(headers):
                deadline.check(advice)
                if each.header.kind == ROWS and each.header.events:
                    found = next(reader.frames(start=each.offset))
                    if isinstance(found, Frame):
                        yield found


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _tail(ops: Ops, request: Request) -> Page[dict[str, Any]]:
    query, limit = request.query_params, limit_of(request)
    after_seq = number(request, "after_seq", None, 0, MOST_SEQ)
    wanted = Wanted(query.get("event_class"), query.get("event_type"), query.get("entity"))
    path = journal_of(ops.views(), query.get("dispatcher"))
    read = partial(tail_rows, path, limit, wanted, after_seq, payloads=ops.config.show_payloads)
    rows = await ops.workers.run(lambda: read(Deadline()))
    return Page(items=rows, next=str(rows[-1]["seq"]) if rows else None, total=None)


async def _state(ops: Ops, request: Request) -> States:
    moment = parse_moment(request.query_params.get("at"))
    path = journal_of(ops.views(), request.query_params.get("dispatcher"))
    return await ops.scans.run(lambda: states_at(path, moment, Deadline()))


GETS: Final[Gets] = {"/journal/tail": _tail, "/journal/state": _state}
