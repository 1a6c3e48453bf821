"""Dispatchers in the ops API: their numbers, types, queues and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic

from pydantic import Field

from dispatcher.ops.answers import MOST_SEQ, Answer, Gets, Item, Page, Real, UnixMs, Whole, event_name, page_of
from dispatcher.ops.process import failure_text
from dispatcher.ops.stacks import Running, running_now
from dispatcher.util.figures import counted
from dispatcher.util.foreign import class_name, type_name
from dispatcher.util.units import milliseconds
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import choice, limit_of, number
from dispatcher.web.waiting import in_pieces

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.sampler import Sampler, TypeRate
    from dispatcher.ops.shared import Ops
    from dispatcher.stats import DispatcherStats
    from dispatcher.view import DispatcherView, FailureRecord, QueueCounts, ScheduledPost
    from dispatcher.view import TypeNumbers as TypeCounts

SORTS: Final = ("queued", "rate", "time", "failed")


class Queue(Answer):
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


class Planned(Answer):
    """An event that waits for the time of its post."""

    due: UnixMs
    every_s: Real | None = None
    key: str = ""
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None

    @property
    def what(self) -> str:
        name = event_name(self.event_class, self.event_type) if self.event_class else self.event_type
        return name + (f" of {self.entity}" if self.entity else "")


class Schedule(Answer):
    """What a dispatcher will post."""

    count: Whole = 0
    fired: Whole = 0
    skipped: Whole = 0
    next: list[Planned] = []


class DeadLetters(Answer):
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
    queue: Queue
    accepted: Whole = 0
    handled: Whole = 0
    failed: Whole = 0
    retrying: Whole = 0
    dead_letters: DeadLetters | None = None
    discarded: dict[str, Whole] = {}
    rejected: dict[str, Whole] = {}
    scheduled: Schedule = Schedule()
    rate: Rate = Rate.model_validate({})
    failure_rate: Rate = Rate.model_validate({})
    idle_share_10s: Real | None = None
    running: Running | None = None
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


class TypeNumbers(Answer):
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

    @property
    def name(self) -> str:
        return event_name(self.event_class, self.event_type)


class QueuedType(Answer):
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


def numbers(view: DispatcherView, sampler: Sampler) -> DispatcherNumbers:
    """One item of /dispatchers."""
    stats = view.stats()
    return DispatcherNumbers(
        name=view.name,
        kind=view.kind,
        state=view.state.name,
        queue=Queue(
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
        scheduled=Schedule(
            count=stats.scheduled,
            fired=stats.scheduled_fired,
            skipped=stats.scheduled_skipped,
            next=[_planned(each) for each in view.scheduled()],
        ),
        rate=Rate(**sampler.rates(view)),
        failure_rate=Rate(**sampler.failure_rates(view)),
        idle_share_10s=sampler.idle_share(view),
        running=running_now(view.running()),
        mails=stats.mails_run,
        mailbox_latency_s=sampler.latency_s(view),
        journal=_journal(view, stats),
        is_drained=view.is_drained(),
        failure=failure_text(view.failure_cause),
    )


def _dead_letters(stats: DispatcherStats) -> DeadLetters | None:
    if stats.dead_letters is None:
        return None
    return DeadLetters(count=stats.dead_letters, lost=stats.dead_letters_lost or 0)


def _planned(post: ScheduledPost) -> Planned:
    return Planned(
        due=milliseconds(post.due),
        every_s=post.every_s,
        key=post.key,
        event_class=post.event_class,
        event_type=post.event_type,
        entity=post.entity,
    )


def _journal(view: DispatcherView, stats: DispatcherStats) -> JournalNumbers | None:
    if view.journal_path is None:
        return None
    return JournalNumbers(
        path=str(view.journal_path),
        bytes=stats.journal_bytes,
        segments=stats.journal_segments,
        outstanding=stats.journal_outstanding,
        failed=bool(stats.journal_is_failed),
    )


def failure_of(record: FailureRecord) -> Failure:
    """One item of /failures."""
    return Failure(
        number=record.number,
        at=milliseconds(record.at),
        event_class=record.event_class,
        event_type=record.event_type,
        entity=record.entity,
        error_class=record.error_class,
        message=record.message,
        frames=list(record.frames),
    )


def type_items(view: DispatcherView, sampler: Sampler, sorts: Sequence[str]) -> list[TypeNumbers]:
    """The items of /types, by these columns, greatest first; equal ones by time, rate, name. Walks over the queue."""
    queued = _by_name(view.queue_contents())
    types = {(each.event_class, each.event_type): each for each in view.types()}
    last_failures: dict[tuple[str, str], FailureRecord] = {}
    for record in reversed(view.failures()):
        last_failures[record.event_class, record.event_type] = record
    rates = sampler.type_rates(view)
    items = [
        _type_item(key, types.get(key), queued[key], rates.get(key), last_failures.get(key))
        for key in dict.fromkeys((*types, *queued))
    ]
    by = [_SORT_KEYS[sort] for sort in (*sorts, "time", "rate")]
    items.sort(key=lambda item: (*(-key(item) for key in by), item.event_class, item.event_type))
    return items


_SORT_KEYS: Final[dict[str, Callable[[TypeNumbers], float]]] = {
    "queued": lambda item: item.queued,
    "rate": lambda item: item.rate_10s or 0.0,
    "time": lambda item: item.handling_share_10s or 0.0,
    "failed": lambda item: item.failed,
}


def _type_item(
    key: tuple[str, str],
    counts: TypeCounts | None,
    queued: int,
    rate: TypeRate | None,
    last_failure: FailureRecord | None,
) -> TypeNumbers:
    return TypeNumbers(
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
            message=last_failure.message,
        ),
    )


def _mean(total_s: float, count: int) -> float | None:
    return total_s / count if count else None


def queued_types(view: DispatcherView) -> tuple[list[QueuedType], bool]:
    """What waits by type, largest first, and whether the numbers are approximate. Walks over the queue."""
    found = view.queue_contents()
    items = [QueuedType(event_class=key[0], event_type=key[1], queued=count) for key, count in _by_name(found).items()]
    items.sort(key=lambda item: (-item.queued, item.event_class, item.event_type))
    return items, found.approximate


def queued_entities(view: DispatcherView, limit: int) -> Queued[QueuedEntity]:
    """What waits for the `limit` entities with most events, largest first. Walks over the queue."""
    found = view.queue_entities(limit)
    items = [QueuedEntity(entity=entity, queued=count) for entity, count in found.counts.items()]
    items.sort(key=lambda item: (-item.queued, item.entity))
    return Queued(items=items, next=None, total=None, approximate=found.approximate)


def _by_name(found: QueueCounts[Any]) -> Counter[tuple[str, str]]:
    """Counts by class and name; types that share both are one."""
    counts: Counter[tuple[str, str]] = Counter()
    for event_type, count in found.counts.items():
        counts[class_name(event_type), type_name(event_type)] += count
    return counts


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def all_numbers(ops: Ops) -> list[DispatcherNumbers]:
    sampler = ops.sampler
    return [numbers(view, sampler) async for view in in_pieces(ops.views())]


async def _dispatchers(ops: Ops, request: Request) -> Page[DispatcherNumbers]:
    return page_of(request, await all_numbers(ops))


async def _dispatcher(ops: Ops, request: Request) -> DispatcherNumbers:
    return numbers(ops.view(request), ops.sampler)


async def _types(ops: Ops, request: Request) -> Page[TypeNumbers]:
    view, sampler = ops.view(request), ops.sampler
    sorts = request.query_params.get("sort", SORTS[0]).split(",")
    if not set(sorts) <= set(SORTS):
        raise Refusal(400, f"sort={','.join(sorts)}: not one of {', '.join(SORTS)}")
    return page_of(request, await ops.workers.run(lambda: type_items(view, sampler, sorts)))


async def _queue(ops: Ops, request: Request) -> Queued[QueuedType] | Queued[QueuedEntity]:
    view, limit = ops.view(request), limit_of(request)
    if choice(request, "by", ("type", "entity")) == "entity":
        return await ops.workers.run(lambda: queued_entities(view, limit))
    items, approximate = await ops.workers.run(lambda: queued_types(view))
    page = page_of(request, items)
    return Queued(items=page.items, next=page.next, total=page.total, approximate=approximate)


async def _failures(ops: Ops, request: Request) -> Page[Failure]:
    records, limit = ops.view(request).failures(), limit_of(request)
    before = number(request, "after", None, 0, MOST_SEQ)
    older = [record for record in records if before is None or record.number < before]
    items = [failure_of(record) for record in older[:limit]]
    return Page(items=items, next=str(items[-1].number) if len(older) > limit else None, total=len(records))


GETS: Final[Gets] = {
    "/dispatchers": _dispatchers,
    "/dispatchers/{name:path}/types": _types,
    "/dispatchers/{name:path}/queue": _queue,
    "/dispatchers/{name:path}/failures": _failures,
}
ONE: Final[Gets] = {"/dispatchers/{name:path}": _dispatcher}
"""After all others: this path has theirs as a part."""
