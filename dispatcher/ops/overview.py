"""The overview of a daemon: its health, each dispatcher with its curves and what waits there, which types flood, what
fails, and what is wrong now, each with since when.

The page, `/overview` and `top` show this one answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dispatcher.ops.answers import Answer, Gets, OfType, Real, UnixMs, Whole, event_name
from dispatcher.ops.dispatchers import (
    Curves,
    DispatcherNumbers,
    FailureGroup,
    Lane,
    LaneKey,
    QueuedEntity,
    QueuedType,
    curves_of,
    failure_groups,
    lane_items,
    numbers,
    queued_entities,
    queued_types,
)
from dispatcher.ops.process import HealthReport, Reason, health_report
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.util.figures import counted, duration
from dispatcher.util.units import milliseconds
from dispatcher.web.plain_answers import to_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.sampler import Sampler
    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView

MOST_WAITING: Final = 3
"""Types, entities and keys of a dispatcher that are listed, those with the most events."""
MOST_FAILING: Final = 20
FAILING_FOR_S: Final = 60.0
"""What has failed within this time is listed."""
SLOW_KEY_AFTER_S: Final = 1.0
"""An event in flight for longer, with others behind it, is a problem."""
_SAMPLE: Final = 500


class Waits(Answer):
    """What waits at a dispatcher."""

    types: list[QueuedType] = []
    entities: list[QueuedEntity] = []
    approximate: bool = False
    """The types and entities are scaled from a sample of a long queue."""
    lanes: list[Lane] = []
    """Of `async def` handlers with events in hand."""


class OverviewRow(Answer):
    """A dispatcher on the overview."""

    numbers: DispatcherNumbers
    curves: Curves = Curves()
    waits: Waits = Waits()


class Flood(OfType):
    """An event type whose queue grows."""

    dispatcher: str
    event_class: str = ""
    event_type: str = ""
    per_s: Real = 0.0
    """Events by which it grows, a second."""
    since: UnixMs
    queued: Whole | None = None
    """Null: too few to be among the largest."""


class Failing(FailureGroup):
    """What has failed in the last minute."""

    dispatcher: str


class Problem(Answer):
    """Something that is wrong now."""

    problem: str
    """A reason or a warning of /readyz, or `floods`, `fails` or `slow_key`."""
    dispatcher: str | None = None
    service: str | None = None
    event_class: str = ""
    event_type: str = ""
    since: UnixMs | None = None
    detail: str = ""
    waits: str = ""
    """What waits there."""

    @property
    def name(self) -> str:
        """The event type, or '' if the problem concerns none."""
        return event_name(self.event_class, self.event_type) if self.event_class or self.event_type else ""


class Overview(Answer):
    """`/overview`."""

    at: UnixMs
    name: str
    health: HealthReport
    dispatchers: list[OverviewRow] = []
    floods: list[Flood] = []
    failing: list[Failing] = []
    problems: list[Problem] = []
    """The gravest first."""


def overview(views: Iterable[DispatcherView], sampler: Sampler, name: str, sight: Sight = WHOLE) -> Overview:
    """The answer of /overview. Looks at a bounded number of events, so it can run once a second."""
    now_ms = milliseconds(time.time())
    rows: list[OverviewRow] = []
    floods: list[Flood] = []
    failing: list[Failing] = []
    rejected: dict[str, dict[str, tuple[str, str]]] = {}
    for view in views:
        row = OverviewRow(
            numbers=numbers(view, sampler, sight), curves=curves_of(view, sampler), waits=_waits(view, sight)
        )
        rows.append(row)
        floods += _floods(view, sampler, row.waits, now_ms)
        failing += _failing(view, sampler, sight, now_ms)
        rejected[view.name] = view.last_rejected()
    floods.sort(key=lambda flood: -flood.per_s)
    failing.sort(key=lambda group: (-group.rate_10s, -group.last))
    del failing[MOST_FAILING:]
    health = health_report()
    return Overview(
        at=now_ms,
        name=name,
        health=health,
        dispatchers=rows,
        floods=floods,
        failing=failing,
        problems=list(_Problems(now_ms, rows, health, floods, failing, rejected).all()),
    )


def _waits(view: DispatcherView, sight: Sight) -> Waits:
    types, approximate = queued_types(view, _SAMPLE)
    entities = queued_entities(view, MOST_WAITING, sight, _SAMPLE).items if types else []
    lanes = lane_items(view, MOST_WAITING, sight)
    return Waits(types=types[:MOST_WAITING], entities=entities, approximate=approximate, lanes=lanes)


def _floods(view: DispatcherView, sampler: Sampler, waits: Waits, now_ms: int) -> Iterator[Flood]:
    queued = {(each.event_class, each.event_type): each.queued for each in waits.types}
    for key, flood in sampler.floods(view).items():
        yield Flood(
            dispatcher=view.name,
            event_class=key[0],
            event_type=key[1],
            per_s=round(flood.per_s, 1),
            since=now_ms - milliseconds(flood.for_s),
            queued=queued.get(key),
        )


def _failing(view: DispatcherView, sampler: Sampler, sight: Sight, now_ms: int) -> Iterator[Failing]:
    for group in failure_groups(view, sampler, sight):
        if abs(now_ms - group.last) <= milliseconds(FAILING_FOR_S):  # the clock may have been set back
            yield Failing(dispatcher=view.name, **dict(group))


class _Problems:
    """What is wrong, by the other parts of an overview."""

    def __init__(
        self,
        now_ms: int,
        rows: Sequence[OverviewRow],
        health: HealthReport,
        floods: Sequence[Flood],
        failing: Sequence[Failing],
        rejected: Mapping[str, Mapping[str, tuple[str, str]]],
    ) -> None:
        self._now_ms = now_ms
        self._rows = {row.numbers.name: row for row in rows}
        self._health = health
        self._floods = floods
        self._failing = failing
        self._rejected = rejected

    def all(self) -> Iterator[Problem]:
        """The gravest first."""
        yield from map(self._of_reason, self._health.reasons)
        yield from map(self._of_flood, self._floods)
        yield from (self._of_failing(each) for each in self._failing if each.rate_10s)
        yield from (self._of_key(*each) for each in self._slow_keys())
        floods = {each.dispatcher for each in self._floods}
        for warned in self._health.warnings:
            if warned.warning != "events_fail" and not (
                warned.warning == "queue_grows" and warned.dispatcher in floods
            ):
                yield Problem(
                    problem=warned.warning,
                    dispatcher=warned.dispatcher,
                    since=warned.since,
                    detail=warned.detail,
                    waits=self._waits(warned.dispatcher),
                )

    def _waits(self, dispatcher: str | None) -> str:
        row = self._rows.get(dispatcher or "")
        return waits_text(row) if row is not None else ""

    def _of_reason(self, reason: Reason) -> Problem:
        row = self._rows.get(reason.dispatcher or "")
        event_class, event_type, detail = self._type_of(reason, row) if row is not None else ("", "", "")
        return Problem(
            problem=reason.reason,
            dispatcher=reason.dispatcher,
            service=reason.service,
            event_class=event_class,
            event_type=event_type,
            since=reason.since,
            detail=detail,
            waits=self._waits(reason.dispatcher),
        )

    def _type_of(self, reason: Reason, row: OverviewRow) -> tuple[str, str, str]:
        """The event class and type that a reason is about, if any, and more about it."""
        running, rejected = row.numbers.running, self._rejected[row.numbers.name]
        match reason.reason:
            case "stuck" if running is not None:
                return (
                    running.event_class,
                    running.event_type,
                    f"{running.what} has run for {duration(running.running_s)}",
                )
            case "queue_full" if row.waits.types:
                first = row.waits.types[0]
                return first.event_class, first.event_type, f"full with {counted(row.numbers.queue.size, 'event')}"
            case "failed" | "journal_failed" | "draining" | "stopped":
                kind = next((rejected[why] for why in ("journal", "stopped", "draining") if why in rejected), ("", ""))
                refused = sum(row.numbers.rejected.values())
                journal = row.numbers.journal.failure if row.numbers.journal is not None else None
                why = row.numbers.failure or journal
                return *kind, ", ".join(filter(None, (f"{counted(refused, 'post')} rejected" if refused else "", why)))
        return "", "", ""

    def _of_flood(self, flood: Flood) -> Problem:
        return self._trouble_with("floods", flood, f"grows by {flood.per_s:,.0f}/s")

    def _of_failing(self, failing: Failing) -> Problem:
        return self._trouble_with("fails", failing, f"{failing.newest.error}, {failing.rate_10s:,.1f}/s")

    def _trouble_with(self, problem: str, found: Flood | Failing, detail: str) -> Problem:
        return Problem(
            problem=problem,
            dispatcher=found.dispatcher,
            event_class=found.event_class,
            event_type=found.event_type,
            since=found.since,
            detail=detail,
            waits=self._waits(found.dispatcher),
        )

    def _slow_keys(self) -> Iterator[tuple[OverviewRow, Lane, LaneKey]]:
        for row in self._rows.values():
            for lane in row.waits.lanes:
                for key in lane.keys:
                    if key.waiting and (key.running_s or 0.0) >= SLOW_KEY_AFTER_S:
                        yield row, lane, key

    def _of_key(self, row: OverviewRow, lane: Lane, key: LaneKey) -> Problem:
        behind = f"{counted(key.waiting, 'event')} behind {f'key {key.key!r}' if key.key else 'it'}"
        return Problem(
            problem="slow_key",
            dispatcher=row.numbers.name,
            event_class=key.event_class,
            event_type=key.event_type,
            since=self._now_ms - milliseconds(key.running_s or 0.0),
            detail=f"{lane.handler} has one in flight for {duration(key.running_s)}",
            waits=f"{behind}; {waits_text(row)}",
        )


def waits_text(row: OverviewRow) -> str:
    """What waits at a dispatcher, as one line."""
    return "; ".join(_waiting(row)) or "nothing"


def _waiting(row: OverviewRow) -> Iterator[str]:
    queue, waits = row.numbers.queue, row.waits
    if queue.size:
        oldest = f", the oldest for {duration(queue.oldest_wait_s)}" if queue.oldest_wait_s else ""
        about = "about " if waits.approximate else ""
        types = ", ".join(f"{about}{each.queued:,} {each.name}" for each in waits.types)
        yield f"{counted(queue.size, 'event')} queued{oldest}: {types}"
    in_lanes = sum(lane.waiting for lane in waits.lanes)
    if in_lanes:
        yield f"{counted(in_lanes, 'event')} for async handlers"
    if row.numbers.retrying:
        yield f"{counted(row.numbers.retrying, 'event')} for another attempt"
    if row.numbers.journal is not None and row.numbers.journal.failed and row.numbers.journal.outstanding:
        yield f"{counted(row.numbers.journal.outstanding, 'event')} in the journal"
    if waits.entities:
        yield "most for " + ", ".join(f"{each.entity} ({each.queued:,})" for each in waits.entities)


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def overview_json(ops: Ops, sight: Sight) -> bytes:
    """The overview as JSON, made at most once a second for all clients that see as much."""
    if not sight.is_whole:
        return to_json(await _make(ops, sight))
    return await ops.numbers.make("overview", lambda: _make(ops, sight))


async def _make(ops: Ops, sight: Sight) -> Overview:
    sampler, views = ops.sampler, ops.views()
    return await ops.workers.run(lambda: overview(views, sampler, ops.name, sight))


async def _overview(ops: Ops, request: Request) -> bytes:
    return await overview_json(ops, await ops.sight(request))


GETS: Final[Gets] = {"/overview": _overview}
