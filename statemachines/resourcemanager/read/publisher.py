"""Publishes what has changed in the resource manager, for the read model of the web address.

Threading: `publish_some` and `close` are for any thread, one call after another; the rest is the
handler thread's, and with `marks` this is the only module of the package that touches its state. Nothing is collected,
and nothing costs, before the first call and after `close`.

A publication is made in mails of a few milliseconds each. What changes between two of them is caught up with, so that
the publication is of one moment, that of its last mail: the last changes, the queues and the totals are reported
without a pause. Only while more changes than reports can keep up with is the rest left to the next publication. The
applications and nodes in the totals are those that are published, so these always agree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.util.foreign import tell
from statemachines.changes import ChangedEntities
from statemachines.resourcemanager import reports
from statemachines.resourcemanager.events.rmnode import RMNodeEventType
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.read.marks import LOOK_EVERY, SORT_EVERY, Dirty, ReportMarks
from statemachines.resourcemanager.read.published import Cost, Publication
from statemachines.resourcemanager.reports import (
    ApplicationAttemptReport,
    ApplicationReport,
    ClusterMetrics,
    ContainerReport,
    NodeReport,
    cluster_metrics,
)
from statemachines.resourcemanager.reports.live_sums import LiveSums
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo

if TYPE_CHECKING:
    from statemachines.resourcemanager.resource_manager import ResourceManager

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

MAIL_NS: Final = 5_000_000
"""How long one mail works at most, but for its last report: half of what may be, since a report may be a large one."""
AT_ONCE: Final = 64
"""Changes that are reported without a pause: one or two milliseconds."""
_MOST_AT_ONCE: Final = 4 * AT_ONCE
"""Reports without a pause: a change may concern an application, its attempts, containers and nodes."""
_CATCHES_UP: Final = 4
"""Run another pass at once only if it has at most 1/4 of the changes of the last; otherwise publish."""
_SUMMARY_NS: Final = 3_000_000
"""Queues are reported without a pause if that took no longer last time."""
_NO_CONTAINERS: Final = LiveSums()
SHARES_AT_ONCE: Final = 256
"""After a change of capacities, each publication reports this many applications again. All at once would delay it and
every other change in it."""
SHARES_EVERY: Final = 20
"""While capacities keep changing, these reports take at most 1/20 of the time."""
_TELL_EVERY_NS: Final = 10_000_000_000


@dataclass(slots=True)
class _Draft:
    """The reports of the publication that is being made; those of a later pass replace those of an earlier one."""

    apps: dict[str, ApplicationReport | None] = field(default_factory=dict)
    attempts: dict[str, tuple[ApplicationAttemptReport, ...] | None] = field(default_factory=dict)
    containers: dict[str, dict[str, ContainerReport] | None] = field(default_factory=dict)
    nodes: dict[str, NodeReport | None] = field(default_factory=dict)
    heartbeats: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.apps or self.attempts or self.containers or self.nodes)


@dataclass(frozen=True, slots=True)
class _Totals:
    """What is published as a whole."""

    queues: Sequence[QueueInfo]
    metrics: ClusterMetrics
    handled: int
    """Events that all dispatchers had handled by then."""


_FREE: Final = Cost()
_NOTHING: Final = _Totals((), ClusterMetrics(), -1)


class ModelPublisher:
    """Makes publications of one resource manager, for one reader."""

    def __init__(self, manager: ResourceManager, *, mail_ns: int = MAIL_NS, shares_every: int = SHARES_EVERY) -> None:
        self.clock_ms: Callable[[], int] = manager.context.now_ms
        """The resource manager's clock, Unix ms. Any thread."""
        # Set once:
        self._context = manager.context
        self._recorder = manager.recorder
        self._dispatchers = manager.dispatchers
        self._executor = manager.dispatcher.mailbox_executor
        self._mail_ns = mail_ns
        self._shares_every = shares_every
        # Handler thread:
        self._marks = ReportMarks(manager.context, manager.scheduler_path, self._tell_of)
        self._changes: ChangedEntities | None = None
        self._work: Iterator[Publication | None] | None = None  # the publication that is being made
        self._until_ns = 0  # the present mail works until then, by time.perf_counter_ns
        self._cost = _FREE  # of its mails until now
        self._last = _NOTHING
        self._summary_ns = 0  # what the last summary took
        self._shares_of = -1  # the version of the capacities that the shares in the applications' reports are of
        self._outdated: list[str] = []  # applications whose shares are still of other capacities
        self._shares_took_ns = 0  # what the applications before them have taken
        self._shares_at_ns = 0  # not before this do they follow other capacities
        self._tell_at_ns = 0  # not before this is a failed report logged again

    def publish_some(self) -> Future[Publication | None]:
        """Work on the publication for one mail; the future gets it once it is complete, and None before: call again.

        Any thread, one call after another. Raises RejectedExecutionError: the resource manager has stopped.
        """
        return self._executor.submit(self._work_on, "publication of what has changed")

    def close(self) -> None:
        """Collect no more changes. Any thread."""
        with suppress(RejectedExecutionError):
            self._executor.execute(self._end, "end of publications")

    # -- the handler thread --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._changes is not None:
            self._recorder.unfollow(self._changes)
        self._changes = self._work = None

    def _work_on(self) -> Publication | None:
        begun_ns = time.thread_time_ns()
        if self._work is None:
            self._work, self._cost = self._publication(), _FREE
        self._until_ns = time.perf_counter_ns() + self._mail_ns
        try:
            for publication in self._work:
                if publication is not None or time.perf_counter_ns() >= self._until_ns:
                    break
        except BaseException:
            self._end()  # the next one is whole
            raise
        self._cost = self._cost.and_one(time.thread_time_ns() - begun_ns)
        if publication is None:
            return None
        self._work = None
        return replace(publication, cost=self._cost)

    def _publication(self) -> Iterator[Publication | None]:
        """Yields None now and then, and at last the publication."""
        at_ns = time.monotonic_ns()
        draft = _Draft()
        changes, changed = self._changes, self._changes.take() if self._changes is not None else None
        is_whole = changed is None or not changed.is_complete
        if changes is None:
            changes = self._changes = self._recorder.follow(RMNodeEventType.STATUS_UPDATE)
        if changed is None or not changed.is_complete:
            dirty = yield from self._marks.of_everything()
            heard: Iterable[RMNode] = list(self._context.nodes.values())
            size = len(dirty.apps) + len(dirty.containers) + len(dirty.nodes)
        else:
            dirty = yield from self._marks.of(changed)
            heard, size = changed.routine.values(), len(changed.operands) + len(changed.forgotten)
        yield None
        has_shares = yield from self._mark_shares(dirty, at_ns, is_whole)
        yield from self._report(draft, dirty, heard)
        if has_shares:
            now_ns = time.monotonic_ns()
            self._shares_took_ns += now_ns - at_ns
            self._shares_at_ns = now_ns + self._shares_every * self._shares_took_ns
        while (more := changes.count()) > AT_ONCE and more * _CATCHES_UP <= size:
            size, at_ns = more, time.monotonic_ns()
            changed = changes.take()
            dirty = yield from self._marks.of(changed)
            yield from self._report(draft, dirty, changed.routine.values())
        if self._until_ns - time.perf_counter_ns() < self._mail_ns // 2:
            self._until_ns = 0
            yield None  # what follows has a mail for itself
        if changes.count() <= AT_ONCE:
            at_ns, changed = time.monotonic_ns(), changes.take()
            dirty = _without_pause(self._marks.of(changed))
            work = self._report(draft, dirty, changed.routine.values())
            if len(dirty) <= _MOST_AT_ONCE:
                _without_pause(work)
            else:  # a change may concern many
                yield from work
        before = self._last
        last = self._last = yield from self._summary(bool(draft))
        is_news = is_whole or bool(draft) or (last.queues, last.metrics) != (before.queues, before.metrics)
        published = self._marks.published
        ended = published.take_failures(), published.take_gone_apps()
        entities = draft.apps, draft.attempts, draft.containers, *ended, draft.nodes
        timestamp = self._context.cluster_timestamp
        whole = last.queues, last.metrics, draft.heartbeats
        run = published.operations.run(self.clock_ms())
        yield Publication(is_whole, at_ns, is_news, *entities, *whole, timestamp, run, _FREE)

    def _report(self, draft: _Draft, dirty: Dirty, heard: Iterable[RMNode]) -> Generator[None, None, None]:
        yield from self._fill(draft.apps, dirty.apps, self._app)
        yield from self._fill(draft.attempts, dirty.attempts, self._attempts)
        yield from self._fill(draft.containers, dirty.containers, self._marks.published.containers_of)
        yield from self._fill(draft.nodes, dirty.nodes, self._node)
        for number, node in enumerate(heard):
            draft.heartbeats[node.entity] = node.last_heartbeat_ms
            if number % SORT_EVERY == 0:
                yield None

    def _summary(self, is_dirty: bool) -> Generator[None, None, _Totals]:
        """The part that is published whole. It is the last one if no dispatcher has handled an event since."""
        last = self._last
        handled = sum(dispatcher.stats().handled for dispatcher in self._dispatchers)
        if handled == last.handled and not is_dirty:
            return last
        begun_ns, is_quick = time.thread_time_ns(), self._summary_ns <= _SUMMARY_NS
        try:
            queues: list[QueueInfo] = []
            for _ in self._queues(queues):
                if not is_quick:
                    yield
            published = self._marks.published
            metrics = cluster_metrics(self._context, published.nodes, published.app_counts(), queues[0])
        except Exception as error:
            self._tell_of("the queues", error)
            return last
        self._summary_ns = time.thread_time_ns() - begun_ns
        return _Totals(tuple(queues), metrics, handled)

    def _queues(self, found: list[QueueInfo]) -> Iterator[None]:
        """All queues, one at a time: a report on one costs as much as it and those below it have users."""
        scheduler = self._context.scheduler
        with scheduler.locked() as policy:
            paths = policy.queue_paths()
        for path in paths:
            with scheduler.locked() as policy:
                info = policy.queue_info(path)
            if info is not None:
                found.append(info)
            yield

    def _mark_shares(self, dirty: Dirty, now_ns: int, is_whole: bool) -> Generator[None, None, bool]:
        """After a change of capacities all shares have changed: mark some applications; returns whether any are."""
        version = self._context.scheduler.capacity_version()
        if is_whole or (version != self._shares_of and not self._outdated and now_ns >= self._shares_at_ns):
            self._shares_of, self._shares_took_ns = version, 0
            self._outdated = [] if is_whole else (yield from self._marks.living_apps())
        elif not self._outdated:
            return False
        dirty.apps.update(dict.fromkeys(self._outdated[-SHARES_AT_ONCE:]))
        del self._outdated[-SHARES_AT_ONCE:]
        return True

    # -- reports -------------------------------------------------------------------------------------------------------

    def _app(self, id: str) -> ApplicationReport | None:
        app, published = self._context.apps.get(id), self._marks.published
        if app is None:
            return None
        attempt = app.current_attempt
        live = published.sums_of(attempt.entity) if attempt is not None else None
        report = reports.application_report(self._context, app, live or _NO_CONTAINERS)
        published.take_app(id, report.queue, report.state)
        published.take_queue((each.entity for each in app.attempts), app.submission.queue)
        return report

    def _attempts(self, app_id: str) -> tuple[ApplicationAttemptReport, ...] | None:
        app = self._context.apps.get(app_id)
        return tuple(reports.attempt_report(self._context, it) for it in app.attempts) if app is not None else None

    def _node(self, id: str) -> NodeReport | None:
        context = self._context
        node = context.nodes.get(id) or context.inactive_nodes.get(id)
        report = reports.node_report(context, node) if node is not None else None
        self._marks.published.take_node(id, report)
        return report

    def _fill(self, made: dict[str, T | None], ids: Iterable[str], report: Callable[[str], T | None]) -> Iterator[None]:
        """Report on each id, and yield now and then. An id whose report fails keeps its last one until it changes."""
        for number, id in enumerate(ids, 1):
            try:
                made[id] = report(id)
            except Exception as error:
                self._tell_of(id, error)
            if number % LOOK_EVERY == 0:
                yield
        yield

    def _tell_of(self, what: str, error: Exception) -> None:
        """Log a failed report, at most one in ten seconds: a report that fails once may fail with each publication."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._tell_at_ns:
            self._tell_at_ns = now_ns + _TELL_EVERY_NS
            tell(
                log,
                logging.ERROR,
                "the web address shows the last report of %s: a new one has failed",
                what,
                error=error,
            )


def _without_pause(work: Generator[None, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
