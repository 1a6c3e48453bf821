"""Dispatchers in the ops API: their numbers, types, queues and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic

from pydantic import Field

from dispatcher.ops.answers import (
    MOST_SEQ,
    Answer,
    Gets,
    Item,
    OfType,
    Page,
    Real,
    UnixMs,
    Whole,
    event_name,
    page_of,
    whole,
)
from dispatcher.ops.process import failure_text
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.ops.stacks import RunningHandler, running_now
from dispatcher.queue.contents import SAMPLE
from dispatcher.util.figures import counted
from dispatcher.util.foreign import class_name, entity_of, is_member, text_of, type_name, type_of
from dispatcher.util.units import milliseconds
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import choice, limit_of, number
from dispatcher.web.waiting import in_pieces

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.interface import ScheduledEvent
    from dispatcher.ops.sampler import Sampler, TypeRate
    from dispatcher.ops.shared import Ops
    from dispatcher.stats import DispatcherStats
    from dispatcher.view import DispatcherView, FailureRecord, QueueCounts, TypeNumbers

EVERY: Final = 1_000_000_000
"""As a limit: all of them."""
SORTS: Final = ("queued", "rate", "time", "failed")


class QueueNumbers(Answer):
    """A dispatcher's queue."""

    size: Whole
    capacity: Whole | None = None
    policy: str = ""
    oldest_wait_s: Real | None = None


class Rate(Answer):
    """Events per second over the last 1, 10 and 60 s; None: not known yet."""

    s1: Real | None = Field(default=None, alias="1s")
    s10: Real | None = Field(default=None, alias="10s")
    s60: Real | None = Field(default=None, alias="60s")


class JournalNumbers(Answer):
    """The journal of a dispatcher."""

    path: str = ""
    bytes: Whole | None = None
    segments: Whole | None = None
    outstanding: Whole | None = None
    failed: bool = False
    failure: str | None = None


class Planned(Answer):
    """An event that waits for the time of its post."""

    due: UnixMs
    last: UnixMs | None = None
    every_s: Real | None = None
    cron: str | None = None
    key: str = ""
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None

    @property
    def what(self) -> str:
        name = event_name(self.event_class, self.event_type) if self.event_class else self.event_type
        return name + (f" of {self.entity}" if self.entity else "")


class ScheduleNumbers(Answer):
    """What a dispatcher will post."""

    count: Whole = 0
    fired: Whole = 0
    skipped: Whole = 0
    next: list[Planned] = []


class DeadLetterNumbers(Answer):
    """The dead letters of a dispatcher."""

    count: Whole = 0
    lost: Whole = 0

    @property
    def what(self) -> str:
        """`3 dead letters, 1 of them lost`."""
        letters = counted(self.count, "dead letter")
        return f"{letters}, {self.lost:,} of them lost" if self.lost else letters


class DispatcherNumbers(Answer):
    """One of `/dispatchers`."""

    name: str
    kind: str = ""
    state: str
    queue: QueueNumbers
    accepted: Whole = 0
    handled: Whole = 0
    failed: Whole = 0
    retrying: Whole = 0
    dead_letters: DeadLetterNumbers | None = None
    discarded: dict[str, Whole] = {}
    rejected: dict[str, Whole] = {}
    scheduled: ScheduleNumbers = ScheduleNumbers()
    rate: Rate = Rate.model_validate({})
    failure_rate: Rate = Rate.model_validate({})
    idle_share_10s: Real | None = None
    running: RunningHandler | None = None
    mails: Whole | None = None
    mailbox_latency_s: Real | None = None
    journal: JournalNumbers | None = None
    is_drained: bool = False
    failure: str | None = None


class LastFailure(Answer):
    """The last failure of an event type."""

    at: UnixMs
    error_class: str = ""
    message: str = ""


class EventTypeNumbers(OfType):
    """One of `/dispatchers/{name}/types`."""

    event_class: str = ""
    event_type: str = ""
    queued: Whole = 0
    handled: Whole = 0
    failed: Whole = 0
    slow: Whole = 0
    rate_10s: Real | None = None
    failed_rate_10s: Real | None = None
    handling_mean_s: Real | None = None
    handling_share_10s: Real | None = None
    queue_mean_s: Real | None = None
    last_failure: LastFailure | None = None


class QueuedType(OfType):
    """One of `/dispatchers/{name}/queue`."""

    event_class: str = ""
    event_type: str = ""
    queued: Whole = 0


class QueuedEntity(Answer):
    """One of `/dispatchers/{name}/queue?by=entity`."""

    entity: str
    queued: Whole = 0


class Queued(Page[Item], Generic[Item]):
    """`/dispatchers/{name}/queue`."""

    approximate: bool = False
    """Scaled from a sample of a long queue."""


class Curves(Answer):
    """`/dispatchers/{name}/curves`: the last five minutes, a value for each `every_s`, oldest first; null: not known.

    The last value is of the seconds since the one before.
    """

    every_s: Real = 5.0
    queue: list[Whole | None] = []
    """The largest number of queued events."""
    rate: list[Real | None] = []
    failing: list[Real | None] = []
    """Events and attempts a second that failed."""
    busy: list[Real | None] = []
    """The part of the time, 0 to 1, in which the handler thread did not wait."""


class LaneKey(OfType):
    """The events of one key that an `async def` handler has in hand."""

    key: str | None = None
    in_flight: Whole = 0
    waiting: Whole = 0
    event_class: str = ""
    """Of the event in flight for longest, else of the first that waits, as the next two."""
    event_type: str = ""
    entity: str | None = None
    running_s: Real | None = None


class Lane(Answer):
    """One of `/dispatchers/{name}/lanes`: the events of an `async def` handler that it has in hand."""

    handler: str
    capacity: Whole = 0
    in_flight: Whole = 0
    waiting: Whole = 0
    is_full: bool = False
    """The dispatcher takes no more events until one of this lane begins."""
    keys: list[LaneKey] = []
    """Those with the most events that wait, first."""


class Failure(Answer):
    """One of `/dispatchers/{name}/failures`."""

    number: Whole = 0
    at: UnixMs
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None
    error_class: str = ""
    message: str = ""
    frames: list[str] = []

    @property
    def what(self) -> str:
        return event_name(self.event_class, self.event_type) + (f" of {self.entity}" if self.entity else "")

    @property
    def error(self) -> str:
        return f"{self.error_class}: {self.message}" if self.message else self.error_class


class FailureGroup(OfType):
    """One of `/dispatchers/{name}/failures/groups`: the failures of an event type with one class of error."""

    event_class: str = ""
    event_type: str = ""
    error_class: str = ""
    failed: Whole = 0
    retried: Whole = 0
    """Attempts that failed and were followed by another."""
    rate_10s: Real = 0.0
    """Failures and attempts a second."""
    first: UnixMs
    since: UnixMs
    """Since when no minute has passed without one."""
    last: UnixMs
    newest: Failure


def numbers(view: DispatcherView, sampler: Sampler, sight: Sight = WHOLE) -> DispatcherNumbers:
    """One item of /dispatchers."""
    stats = view.stats()
    return DispatcherNumbers(
        name=view.name,
        kind=view.kind,
        state=view.state.name,
        queue=QueueNumbers(
            size=stats.queue_size,
            capacity=view.queue_capacity,
            policy=view.queue_policy,
            oldest_wait_s=view.oldest_wait_s(),
        ),
        accepted=stats.accepted,
        handled=stats.handled,
        failed=stats.failed,
        retrying=stats.retrying,
        dead_letters=_dead_letters(stats),
        discarded=stats.discarded_by_reason,
        rejected=stats.rejected,
        scheduled=ScheduleNumbers(
            count=stats.scheduled,
            fired=stats.scheduled_fired,
            skipped=stats.scheduled_skipped,
            next=planned(view) if sight.is_whole else [],
        ),
        rate=Rate(**sampler.rates(view)),
        failure_rate=Rate(**sampler.failure_rates(view)),
        idle_share_10s=sampler.idle_share(view),
        running=running_now(view.running(), sight),
        mails=stats.mails_run,
        mailbox_latency_s=sampler.latency_s(view),
        journal=_journal(view, stats, sight),
        is_drained=view.is_drained(),
        failure=failure_text(view.failure_cause, sight),
    )


def _dead_letters(stats: DispatcherStats) -> DeadLetterNumbers | None:
    if stats.dead_letters is None:
        return None
    return DeadLetterNumbers(count=stats.dead_letters, lost=stats.dead_letters_lost or 0)


def planned(view: DispatcherView, limit: int = 10, start: int = 0, prefix: str = "") -> list[Planned]:
    """What the dispatcher posts next, soonest first, without the first `start`."""
    return list(_planned(view.scheduled(start + limit, prefix)[start:]))


def _planned(posts: Iterable[ScheduledEvent]) -> Iterator[Planned]:
    for post in posts:
        event, rule, due = post.event, post.rule, post.due
        if due is None:  # fired meanwhile
            continue
        event_type = type_of(event)
        is_event = is_member(event_type)
        yield Planned(
            due=milliseconds(due),
            last=None if post.last_fired is None else milliseconds(post.last_fired),
            every_s=rule.get("seconds"),
            cron=f"{rule['cron']} {rule['tz']}" if "cron" in rule else None,
            key=post.key,
            event_class=class_name(event_type) if is_event else "",
            event_type=type_name(event_type) if is_event else "post_every" if event is None else text_of(event),
            entity=entity_of(event) if is_event else None,
        )


def _journal(view: DispatcherView, stats: DispatcherStats, sight: Sight) -> JournalNumbers | None:
    if view.journal_path is None:
        return None
    return JournalNumbers(
        path=str(view.journal_path),
        bytes=stats.journal_bytes,
        segments=stats.journal_segments,
        outstanding=stats.journal_outstanding,
        failed=bool(stats.journal_is_failed),
        failure=failure_text(view.journal_failure(), sight),
    )


def failure_of(record: FailureRecord, sight: Sight = WHOLE) -> Failure:
    """One item of /failures. The message is for those who may see everything: it can contain anything."""
    entity = record.entity if sight.sees(record.entity) else None
    message = record.message if sight.is_whole else ""
    shown = replace(record, at=milliseconds(record.at), entity=entity, message=message)
    return Failure.model_validate(shown, from_attributes=True)


def curves_of(view: DispatcherView, sampler: Sampler) -> Curves:
    """The answer of /curves."""
    return Curves(**sampler.curves(view)._asdict())


def lane_items(view: DispatcherView, limit: int, sight: Sight = WHOLE) -> list[Lane]:
    """The items of /lanes, each with up to `limit` keys. Keys are for those who may see everything."""
    lanes = view.lanes(limit)
    if not sight.is_whole:
        for lane in lanes:  # its list is this call's own
            lane.keys[:] = [
                replace(key, key=None, entity=key.entity if sight.sees(key.entity) else None) for key in lane.keys
            ]
    return [Lane.model_validate(lane, from_attributes=True) for lane in lanes]


def failure_groups(view: DispatcherView, sampler: Sampler, sight: Sight = WHOLE) -> list[FailureGroup]:
    """The items of /failures/groups, the last to fail first."""
    rates = sampler.failing_rates(view)
    return [
        FailureGroup(
            event_class=(newest := group.newest).event_class,
            event_type=newest.event_type,
            error_class=newest.error_class,
            failed=group.failed,
            retried=group.retried,
            rate_10s=rates.get((newest.event_class, newest.event_type, newest.error_class), 0.0),
            first=milliseconds(group.first_at),
            since=milliseconds(group.since_at),
            last=milliseconds(newest.at),
            newest=failure_of(newest, sight),
        )
        for group in view.failure_groups()
    ]


def type_items(
    view: DispatcherView, sampler: Sampler, sorts: Sequence[str], sight: Sight = WHOLE, sample: int = SAMPLE
) -> list[EventTypeNumbers]:
    """The items of /types, by these columns, greatest first; equal ones by time, rate, name. Walks over the queue."""
    queued = _by_name(view.queue_contents(sample))
    types = {(each.event_class, each.event_type): each for each in view.types()}
    last_failures: dict[tuple[str, str], FailureRecord] = {}
    for record in reversed(view.failures()):
        last_failures[record.event_class, record.event_type] = record
    rates = sampler.type_rates(view)
    items = [
        _type_item(key, types.get(key), queued[key], rates.get(key), last_failures.get(key), sight)
        for key in dict.fromkeys((*types, *queued))
    ]
    by = [_SORT_KEYS[sort] for sort in (*sorts, "time", "rate")]
    items.sort(key=lambda item: (*(-key(item) for key in by), item.event_class, item.event_type))
    return items


_SORT_KEYS: Final[dict[str, Callable[[EventTypeNumbers], float]]] = {
    "queued": lambda item: item.queued,
    "rate": lambda item: item.rate_10s or 0.0,
    "time": lambda item: item.handling_share_10s or 0.0,
    "failed": lambda item: item.failed,
}


def _type_item(
    key: tuple[str, str],
    counts: TypeNumbers | None,
    queued: int,
    rate: TypeRate | None,
    last_failure: FailureRecord | None,
    sight: Sight,
) -> EventTypeNumbers:
    return EventTypeNumbers(
        event_class=key[0],
        event_type=key[1],
        queued=queued,
        handled=counts.handled if counts is not None else 0,
        failed=counts.failed if counts is not None else 0,
        rate_10s=rate.rate if rate is not None else 0.0,
        failed_rate_10s=rate.failed_rate if rate is not None else 0.0,
        handling_mean_s=_mean(counts.handling_s, counts.timed) if counts is not None else None,
        handling_share_10s=rate.share if rate is not None else 0.0,
        queue_mean_s=_mean(counts.queue_s, counts.queue_timed) if counts is not None else None,
        slow=counts.slow if counts is not None else 0,
        last_failure=None
        if last_failure is None
        else LastFailure(
            at=milliseconds(last_failure.at),
            error_class=last_failure.error_class,
            message=last_failure.message if sight.is_whole else "",
        ),
    )


def _mean(total_s: float, count: int) -> float | None:
    return total_s / count if count else None


def queued_types(view: DispatcherView, sample: int = SAMPLE) -> tuple[list[QueuedType], bool]:
    """What waits by type, largest first, and whether the numbers are approximate. Walks over the queue."""
    found = view.queue_contents(sample)
    items = [QueuedType(event_class=key[0], event_type=key[1], queued=count) for key, count in _by_name(found).items()]
    items.sort(key=lambda item: (-item.queued, item.event_class, item.event_type))
    return items, found.approximate


def queued_entities(
    view: DispatcherView, limit: int, sight: Sight = WHOLE, sample: int = SAMPLE
) -> Queued[QueuedEntity]:
    """What waits for the `limit` visible entities with most events, largest first. Walks over the queue."""
    found = view.queue_entities(limit if sight.is_whole else EVERY, sample)
    seen = ((entity, count) for entity, count in found.counts.items() if sight.sees(entity))
    items = [QueuedEntity(entity=entity, queued=count) for entity, count in islice(seen, limit)]
    items.sort(key=lambda item: (-item.queued, item.entity))
    return Queued(items=items, next=None, total=None, approximate=found.approximate)


def _by_name(found: QueueCounts[Any]) -> Counter[tuple[str, str]]:
    """Counts by class and name; types that share both are one."""
    counts: Counter[tuple[str, str]] = Counter()
    for event_type, count in found.counts.items():
        counts[class_name(event_type), type_name(event_type)] += count
    return counts


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def all_numbers(ops: Ops, sight: Sight) -> list[DispatcherNumbers]:
    sampler = ops.sampler
    return [numbers(view, sampler, sight) async for view in in_pieces(ops.views())]


async def _dispatchers(ops: Ops, request: Request) -> Page[DispatcherNumbers]:
    return page_of(request, await all_numbers(ops, await ops.sight(request)))


async def _dispatcher(ops: Ops, request: Request) -> DispatcherNumbers:
    return numbers(ops.view(request), ops.sampler, await ops.sight(request))


async def _types(ops: Ops, request: Request) -> Page[EventTypeNumbers]:
    view, sampler = ops.view(request), ops.sampler
    sorts = request.query_params.get("sort", SORTS[0]).split(",")
    if not set(sorts) <= set(SORTS):
        raise Refusal(400, f"sort={','.join(sorts)}: not one of {', '.join(SORTS)}")
    sight = await ops.sight(request)
    return page_of(request, await ops.workers.run(lambda: type_items(view, sampler, sorts, sight)))


async def _queue(ops: Ops, request: Request) -> Queued[QueuedType] | Queued[QueuedEntity]:
    view, limit = ops.view(request), limit_of(request)
    if choice(request, "by", ("type", "entity")) == "entity":
        sight = await ops.sight(request)
        return await ops.workers.run(lambda: queued_entities(view, limit, sight))
    items, approximate = await ops.workers.run(lambda: queued_types(view))
    page = page_of(request, items)
    return Queued(items=page.items, next=page.next, total=page.total, approximate=approximate)


async def _failures(ops: Ops, request: Request) -> Page[Failure]:
    view, limit = ops.view(request), limit_of(request)
    before = number(request, "after", None, 0, MOST_SEQ)
    sight = await ops.sight(request)
    records = await ops.workers.run(view.failures)  # reads source files
    older = [record for record in records if before is None or record.number < before]
    items = [failure_of(record, sight) for record in older[:limit]]
    return Page(items=items, next=str(items[-1].number) if len(older) > limit else None, total=len(records))


async def _failure_groups(ops: Ops, request: Request) -> Page[FailureGroup]:
    view, sampler, sight = ops.view(request), ops.sampler, await ops.sight(request)
    return page_of(request, await ops.workers.run(lambda: failure_groups(view, sampler, sight)))


async def _curves(ops: Ops, request: Request) -> Curves:
    return curves_of(ops.view(request), ops.sampler)


async def _lanes(ops: Ops, request: Request) -> Page[Lane]:
    view, limit, sight = ops.view(request), limit_of(request), await ops.sight(request)
    return whole(await ops.workers.run(lambda: lane_items(view, limit, sight)))


GETS: Final[Gets] = {
    "/dispatchers": _dispatchers,
    "/dispatchers/{name:path}/curves": _curves,
    "/dispatchers/{name:path}/lanes": _lanes,
    "/dispatchers/{name:path}/failures/groups": _failure_groups,
    "/dispatchers/{name:path}/types": _types,
    "/dispatchers/{name:path}/queue": _queue,
    "/dispatchers/{name:path}/failures": _failures,
}
ONE: Final[Gets] = {"/dispatchers/{name:path}": _dispatcher}
"""After all others: this path has theirs as a part."""
