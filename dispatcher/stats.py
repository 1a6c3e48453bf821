"""The statistics of a dispatcher, as one frozen snapshot. The declaration of a field says if it is a metric.

Each counter is written by the thread that owns it (invariant 1). A snapshot reads them one after another, so an event
that moves meanwhile could be missed, or counted twice: [queued: 1], in hand: 0, [it is taken], queued: 0. So it is
taken where none moves: by the handler thread between two events, or by another one while that waits or is in a handler.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_type_hints

from dispatcher.dispatching.batches import BatchDispatching
from dispatcher.dispatching.early_signs import SIGNS
from dispatcher.dispatching.monitor import MAIL_TYPE, Run
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.queue.schedule import Schedule
from dispatcher.util.histogram import Histogram

if TYPE_CHECKING:
    from dispatcher.journal.writer import JournalWriter

_ByType = dict[tuple[str, str], int]
_TimesByType = dict[tuple[str, str], tuple[int, float]]
_TYPE_LABELS: Final = ("event_class", "event_type")


class MetricSpec(NamedTuple):
    """How Prometheus shows a field of the statistics, unless its value is None.

    With `labels`, the value is a mapping from the labels' values to numbers; of a summary, to counts and sums.
    """

    kind: Literal["gauge", "counter", "histogram", "summary"]
    name: str
    help: str
    labels: tuple[str, ...] = ()


_gauge = partial(MetricSpec, "gauge")
_counter = partial(MetricSpec, "counter")
_histogram = partial(MetricSpec, "histogram")
_summary = partial(MetricSpec, "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherStats:
    """Counts and times of one dispatcher at one moment. Histograms and mappings are copies."""

    queue_size: Annotated[int, _gauge("dispatcher_event_queue_size", "Events waiting in the queue.")]
    queue_capacity: Annotated[
        float, _gauge("dispatcher_event_queue_capacity", "Maximum events in the queue; +Inf without a maximum.")
    ]
    mails_run: Annotated[int, _counter("dispatcher_mailbox_mails", "Mails run on the handler thread.")]
    handler_running_s: Annotated[
        float, _gauge("dispatcher_handler_running_seconds", "How long the current handler or mail has run.")
    ]
    running: Annotated[
        dict[tuple[str, str, str], float],
        _gauge(
            "dispatcher_running_seconds",
            "How long the current handler or mail has run; no series while the handler thread waits.",
            ("kind", *_TYPE_LABELS),
        ),
    ]
    """Seconds since the current event or mail began, if any, by kind (event or mail), event class and event type."""
    slow_by_type: Annotated[
        _ByType,
        _counter("dispatcher_slow", "Events and mails that ran longer than handler_warn_after_s.", _TYPE_LABELS),
    ]
    """Slow runs of every type handled or failed so far. Mail has the class (mail) and an empty type."""
    idle_s: Annotated[float, _counter("dispatcher_idle_seconds", "Time that the handler thread was idle.")]
    is_failed: Annotated[
        bool, _gauge("dispatcher_failed", "1 if the dispatcher has failed; its failure_cause has the reason.")
    ]
    degraded: Annotated[
        dict[str, int],
        _gauge("dispatcher_degraded", "1 while the dispatcher shows this sign of trouble.", ("reason",)),
    ]
    """1 or 0 by reason: queue_grows, events_fail, letters_lost. As of the last check, up to a second ago."""
    in_hand: int
    """Events taken from the queue and not finished: 0 or 1, plus those whose coroutines haven't ended."""
    discarded: Annotated[int, _counter("dispatcher_events_discarded", "Events accepted that will never be handled.")]
    discarded_by_reason: Annotated[
        dict[str, int], _counter("dispatcher_events_dropped", "The discarded events by reason.", ("reason",))
    ]
    """Discarded events by reason.

    stop: left over at a stop. drop_oldest: removed from a full queue. superseded: replaced by a newer event with its
    key. withdrawn: the caller no longer waits for the answer.
    """
    rejected: Annotated[dict[str, int], _counter("dispatcher_events_rejected", "Events rejected.", ("reason",))]
    """Rejected posts by reason: full, timeout, draining, stopped, journal, reentrant."""
    handled_by_type: Annotated[_ByType, _counter("dispatcher_events_handled", "Events handled.", _TYPE_LABELS)]
    failed_by_type: Annotated[
        _ByType,
        _counter("dispatcher_events_failed", "Events whose handler raised, or without a handler.", _TYPE_LABELS),
    ]
    accepted: Annotated[int, _counter("dispatcher_events_accepted", "Events accepted from producers.")]
    """Accepted events: handled + failed + in hand + queued + retrying + discarded (invariant 4)."""
    retrying: Annotated[int, _gauge("dispatcher_events_retrying", "Events that wait for their next attempt.")]
    retried_by_type: Annotated[
        _ByType,
        _counter("dispatcher_events_retried", "Attempts that failed and were followed by another.", _TYPE_LABELS),
    ]
    dead_letters: Annotated[
        int | None, _counter("dispatcher_dead_letters", "Failed events that were given to the dead letters.")
    ]
    """None if the dispatcher has no dead letters."""
    dead_letters_lost: Annotated[
        int | None, _counter("dispatcher_dead_letters_lost", "Dead letters that could not be stored anywhere.")
    ]
    scheduled: Annotated[int, _gauge("dispatcher_events_scheduled", "Events scheduled for a later post.")]
    """Events of `post_after`, `post_at` and `post_every` that are still to be accepted."""
    scheduled_fired: Annotated[
        int, _counter("dispatcher_scheduled_fired", "Scheduled events that were due and posted.")
    ]
    scheduled_skipped: Annotated[
        int,
        _counter(
            "dispatcher_scheduled_skipped",
            "Firings of post_every skipped: its last event was still queued, or the time was missed.",
        ),
    ]
    queue_time: Annotated[
        Histogram | None, _histogram("dispatcher_event_queue_seconds", "Time of events in the queue.")
    ]
    """Time in the queue, of the events timed there."""
    handling_time: Annotated[
        Histogram | None, _histogram("dispatcher_event_handling_seconds", "Time of events in their handlers.")
    ]
    """Handling time of all events. In a flood of fast ones, each batch counts with its mean."""
    handling_by_type: Annotated[
        _TimesByType,
        _summary(
            "dispatcher_event_type_handling_seconds",
            "Time of events in their handlers, of those that were timed individually.",
            _TYPE_LABELS,
        ),
    ]
    """Number of events and sum of their times, in seconds. In a flood, one event of each batch is timed."""
    queue_time_by_type: Annotated[
        _TimesByType,
        _summary(
            "dispatcher_event_type_queue_seconds",
            "Time of events in the queue, for those that were timed there.",
            _TYPE_LABELS,
        ),
    ]
    """The same as `handling_by_type`, for the events timed in the queue."""
    mailbox_latency: Annotated[
        Histogram | None,
        _histogram("dispatcher_mailbox_latency_seconds", "Time from sending a mail until it runs, sampled."),
    ]
    journal_bytes: Annotated[int | None, _counter("dispatcher_journal_bytes", "Bytes written to the event journal.")]
    journal_frames: Annotated[int | None, _counter("dispatcher_journal_frames", "Frames written: batches of rows.")]
    journal_syncs: Annotated[
        int | None, _counter("dispatcher_journal_syncs", "Times that the journal waited for the disk.")
    ]
    journal_segments: Annotated[int | None, _counter("dispatcher_journal_segments", "Segments closed.")]
    journal_outstanding: Annotated[
        int | None, _gauge("dispatcher_journal_outstanding", "Write-ahead mode: events accepted and not handled.")
    ]
    journal_lost: Annotated[
        dict[tuple[str, str, str], int],
        _gauge(
            "dispatcher_journal_lost_events",
            "Accepted events that the start found lost with these segments; first and last are their numbers. "
            "The value is 1 if the last number is unknown.",
            ("segments", "first", "last"),
        ),
    ]
    journal_is_failed: Annotated[
        bool | None, _gauge("dispatcher_journal_failed", "1 if the journal could not be written and has ended.")
    ]

    @property
    def handled(self) -> int:
        """Number of events whose handlers returned."""
        return sum(self.handled_by_type.values())

    @property
    def failed(self) -> int:
        """Number of events whose handler raised."""
        return sum(self.failed_by_type.values())

    @property
    def pending(self) -> int:
        """Number of events queued or being handled."""
        return self.in_hand + self.queue_size + self.retrying


METRICS: Final[dict[str, MetricSpec]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(DispatcherStats, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""The fields of the statistics that are metrics."""


def take_stats(
    dispatching: BatchDispatching,
    processor: MailboxProcessor,
    schedule: Schedule,
    *,
    run: Run | None,
    is_failed: bool,
) -> DispatcherStats:
    """Read all the counters of a dispatcher. `run`: what its handler thread does.

    The handler thread, or any other while that waits or is in a handler: see `DispatcherView.stats`.
    """
    queue = dispatching.queue
    ended_by_route = [(route, route.handled, route.failed) for route in dispatching.routes.all()]
    with queue.lock:
        in_hand = dispatching.in_hand() - queue.withdrawn_waiting
        queue_size, retrying = queue.size(), len(queue.retrying)
        dropped, rejected = queue.dropped.copy(), queue.rejected.copy()
    handled: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    retried: Counter[tuple[str, str]] = Counter()
    slow: Counter[tuple[str, str]] = Counter({MAIL_TYPE: processor.slow_mails})
    handling: _TimesByType = {}
    queueing: _TimesByType = {}
    for route, handled_of, failed_of in ended_by_route:
        key = route.event_class, route.name
        handled[key] += handled_of
        failed[key] += failed_of
        retried[key] += route.retried
        slow[key] += route.slow
        every = handled_of + failed_of if dispatching.times.every else None
        _add_times(handling, key, route.timed if every is None else every, route.handling_ns)
        _add_times(queueing, key, route.queue_timed if every is None else every, route.queue_ns)
    ended = handled.total() + failed.total()
    discarded = sum(dropped.values())
    running_s = run.seconds() if run is not None else 0.0
    times = dispatching.times
    letters = dispatching.errors.dead_letters
    queue_time, handling_time = times.copies(route for route, _, _ in ended_by_route)
    return DispatcherStats(
        queue_size=queue_size,
        queue_capacity=float("inf") if queue.room.capacity is None else queue.room.capacity,
        mails_run=processor.mails_run,
        handler_running_s=running_s,
        running={(run.kind, *run.type_labels()): running_s} if run is not None else {},
        slow_by_type=dict(slow),
        idle_s=dispatching.idle.total_ns() / 1e9,
        is_failed=is_failed,
        degraded={**dict.fromkeys(SIGNS, 0), **{sign.name: 1 for sign in dispatching.signs.present}},
        in_hand=in_hand,
        discarded=discarded,
        discarded_by_reason=dropped,
        rejected=rejected,
        handled_by_type=dict(+handled),
        failed_by_type=dict(+failed),
        accepted=ended + in_hand + discarded + retrying + queue_size,
        retrying=retrying,
        retried_by_type=dict(+retried),
        dead_letters=None if letters is None else letters.count,
        dead_letters_lost=None if letters is None else letters.lost,
        scheduled=schedule.size(),
        scheduled_fired=schedule.fired,
        scheduled_skipped=schedule.skipped,
        queue_time=queue_time if times.measures else None,
        handling_time=handling_time if times.measures else None,
        handling_by_type=handling if times.measures else {},
        queue_time_by_type=queueing if times.measures else {},
        mailbox_latency=processor.metrics_controller.latency.copy() if times.measures else None,
        **_of_journal(dispatching.journal),
    )


def _of_journal(journal: JournalWriter | None) -> dict[str, Any]:
    """The statistics of the journal; None for each without one."""
    log = journal.log if journal is not None else None
    return {
        "journal_bytes": log and log.bytes_written,
        "journal_frames": log and log.frames,
        "journal_syncs": log and log.syncs,
        "journal_segments": log and log.segments_closed,
        "journal_outstanding": log and log.outstanding,
        "journal_lost": {
            (loss.segments, str(loss.first), "" if loss.last is None else str(loss.last)): len(loss.seqs) or 1
            for loss in (journal.losses if journal else ())
        },
        "journal_is_failed": journal and journal.is_failed,
    }


def _add_times(times: _TimesByType, key: tuple[str, str], timed: int, total_ns: int) -> None:
    """Add the times of a type. Types count together if their Enum classes share a name."""
    count, seconds = times.get(key, (0, 0.0))
    times[key] = count + timed, seconds + total_ns / 1e9
