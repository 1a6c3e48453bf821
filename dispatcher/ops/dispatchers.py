"""Dispatchers in the ops API: their numbers, types, queues and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from dispatcher.ops.sampler import Sampler, TypeRate
from dispatcher.service import Service, ServiceState
from dispatcher.stats import DispatcherStats
from dispatcher.util.foreign import class_name, describe, type_name
from dispatcher.util.terminal import one_line
from dispatcher.util.units import milliseconds
from dispatcher.view import (
    DispatcherView,
    FailureRecord,
    QueueCounts,
    RunningNow,
    ScheduledPost,
    TypeNumbers,
    dispatchers,
)
from dispatcher.web.plain_answers import Refusal

SORTS: Final = ("queued", "rate", "time", "failed")


def find_dispatcher(name: str) -> DispatcherView:
    """The dispatcher of this name, if possible one that runs. Raises Refusal (404)."""
    found = [view for view in dispatchers() if view.name == name]
    if not found:
        known = ", ".join(dict.fromkeys(view.name for view in dispatchers())) or "none"
        raise Refusal(404, f"no dispatcher {name!r} in this process; known: {known}")
    return next((view for view in found if view.state is ServiceState.STARTED), found[0])


def numbers(view: DispatcherView, sampler: Sampler) -> dict[str, Any]:
    """One item of /dispatchers."""
    stats = view.stats()
    return {
        "name": view.name,
        "kind": view.kind,
        "state": view.state.name,
        "queue": {
            "size": stats.queue_size,
            "capacity": view.queue_capacity,
            "policy": view.queue_policy,
            "oldest_wait_s": view.oldest_wait_s(),
        },
        "accepted": stats.accepted,
        "handled": stats.handled,
        "failed": stats.failed,
        "retrying": stats.retrying,
        "dead_letters": _dead_letters(stats),
        "discarded": stats.discarded_by_reason,
        "rejected": stats.rejected,
        "scheduled": {
            "count": stats.scheduled,
            "fired": stats.scheduled_fired,
            "skipped": stats.scheduled_skipped,
            "next": [_scheduled(each) for each in view.scheduled()],
        },
        "rate": sampler.rates(view),
        "failure_rate": sampler.failure_rates(view),
        "idle_share_10s": sampler.idle_share(view),
        "running": running_now(view.running()),
        "mails": stats.mails_run,
        "mailbox_latency_s": sampler.latency_s(view),
        "journal": _journal(view, stats),
        "is_drained": view.is_drained(),
        "failure": failure_text(view.failure_cause),
    }


def _dead_letters(stats: DispatcherStats) -> dict[str, Any] | None:
    if stats.dead_letters is None:
        return None
    return {"count": stats.dead_letters, "lost": stats.dead_letters_lost}


def _scheduled(post: ScheduledPost) -> dict[str, Any]:
    return {
        "due": milliseconds(post.due),
        "every_s": post.every_s,
        "key": post.key,
        "event_class": post.event_class,
        "event_type": post.event_type,
        "entity": post.entity,
    }


def running_now(running: RunningNow | None) -> dict[str, Any] | None:
    """What runs, without its stack."""
    if running is None:
        return None
    return {
        "kind": running.kind,
        "event_class": running.event_class,
        "event_type": running.event_type,
        "entity": running.entity,
        "description": running.description,
        "since": milliseconds(running.since),
        "running_s": running.running_s,
    }


def failure_text(error: BaseException | None) -> str | None:
    """Class and message in one line."""
    return None if error is None else one_line(describe(error))


def failure_item(record: FailureRecord) -> dict[str, Any]:
    """One item of /failures."""
    return {
        "number": record.number,
        "at": milliseconds(record.at),
        "event_class": record.event_class,
        "event_type": record.event_type,
        "entity": record.entity,
        "error_class": record.error_class,
        "message": record.message,
        "frames": record.frames,
    }


def type_items(view: DispatcherView, sampler: Sampler, sorts: Sequence[str]) -> list[dict[str, Any]]:
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
    items.sort(key=lambda item: (*(-key(item) for key in by), item["event_class"], item["event_type"]))
    return items


def queued_types(view: DispatcherView) -> tuple[list[dict[str, Any]], bool]:
    """What waits by type, largest first, and whether the numbers are approximate. Walks over the queue."""
    found = view.queue_contents()
    items: list[dict[str, Any]] = [
        {"event_class": key[0], "event_type": key[1], "queued": count} for key, count in _by_name(found).items()
    ]
    items.sort(key=lambda item: (-item["queued"], item["event_class"], item["event_type"]))
    return items, found.approximate


def queued_entities(view: DispatcherView, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """As `queued_types`, for the `limit` entities with most events."""
    found = view.queue_entities(limit)
    items: list[dict[str, Any]] = [{"entity": entity, "queued": count} for entity, count in found.counts.items()]
    items.sort(key=lambda item: (-item["queued"], item["entity"]))
    return items, found.approximate


def service_tree(service: Service, children: Callable[[Service], Sequence[Service]]) -> dict[str, Any]:
    return {
        "name": service.name,
        "class": class_name(service),
        "state": service.state.name,
        "failure": failure_text(service.failure_cause),
        "services": [service_tree(child, children) for child in children(service)],
    }


def _by_name(found: QueueCounts[Any]) -> Counter[tuple[str, str]]:
    """Counts by class and name; types that share both are one."""
    counts: Counter[tuple[str, str]] = Counter()
    for event_type, count in found.counts.items():
        counts[class_name(event_type), type_name(event_type)] += count
    return counts


_SORT_KEYS: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    "queued": lambda item: item["queued"],
    "rate": lambda item: item["rate_10s"],
    "time": lambda item: item["handling_share_10s"],
    "failed": lambda item: item["failed"],
}


def _type_item(
    key: tuple[str, str],
    numbers: TypeNumbers | None,
    queued: int,
    rate: TypeRate | None,
    last_failure: FailureRecord | None,
) -> dict[str, Any]:
    rate = rate or TypeRate(0.0, 0.0, 0.0)
    return {
        "event_class": key[0],
        "event_type": key[1],
        "queued": queued,
        "handled": numbers.handled if numbers is not None else 0,
        "failed": numbers.failed if numbers is not None else 0,
        "rate_10s": rate.rate,
        "failed_rate_10s": rate.failed_rate,
        "handling_mean_s": _mean(numbers.handling_s, numbers.timed) if numbers is not None else None,
        "handling_share_10s": rate.share,
        "queue_mean_s": _mean(numbers.queue_s, numbers.queue_timed) if numbers is not None else None,
        "slow": numbers.slow if numbers is not None else 0,
        "last_failure": None
        if last_failure is None
        else {
            "at": milliseconds(last_failure.at),
            "error_class": last_failure.error_class,
            "message": last_failure.message,
        },
    }


def _mean(total_s: float, count: int) -> float | None:
    return total_s / count if count else None


def _journal(view: DispatcherView, stats: DispatcherStats) -> dict[str, Any] | None:
    if view.journal_path is None:
        return None
    return {
        "path": str(view.journal_path),
        "bytes": stats.journal_bytes,
        "segments": stats.journal_segments,
        "outstanding": stats.journal_outstanding,
        "failed": bool(stats.journal_is_failed),
    }
