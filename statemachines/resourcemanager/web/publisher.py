"""Publishes what has changed in the resource manager, for the read model of the web address.

Threading: `publish_some` and `close` are for any thread, one call after another; the rest is the
handler thread's, and this is the only module of the package that touches its state. A publication is made in mails of a
few milliseconds each; whatever changes between two of them is in the next publication as well. Nothing is collected,
and nothing costs, before the first call and after `close`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.util.foreign import tell
from statemachines.changes import Changed, Changes
from statemachines.resourcemanager import reports
from statemachines.resourcemanager.events.rmnode import RMNodeEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.machines.states import FINAL_STATES
from statemachines.resourcemanager.reports import (
    ApplicationAttemptReport,
    ApplicationReport,
    ClusterMetrics,
    ContainerReport,
    NodeReport,
    cluster_metrics,
)
from statemachines.resourcemanager.reports.live_sums import LiveSums
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.web.published import Cost, Publication, Published

if TYPE_CHECKING:
    from statemachines.resourcemanager.resource_manager import ResourceManager

log = logging.getLogger(__name__)

T = TypeVar("T")

MAIL_NS: Final = 5_000_000
"""How long one mail works at most, but for its last report: half of what may be, since a report may be a large one."""
_LOOK_EVERY: Final = 16
"""Reports between two looks at the clock."""
_NO_CONTAINERS: Final = LiveSums()
_SORT_EVERY: Final = 64
_LOOKS_EVERY: Final = 1024
_SHARES_EVERY: Final = 20
"""When capacities keep changing, all applications are reported again for 1/20 of the time at most."""
_MOST_SETTLING: Final = 8
_TELL_EVERY_NS: Final = 10_000_000_000
_NOT_ADDED: Final = frozenset({RMAppAttemptState.NEW, RMAppAttemptState.SUBMITTED})


@dataclass(slots=True)
class _Dirty:
    """What a publication has to report, by id."""

    apps: dict[str, None] = field(default_factory=dict)  # dicts: in the order of the change
    attempts: dict[str, None] = field(default_factory=dict)  # applications whose attempts have changed
    containers: dict[str, None] = field(default_factory=dict)  # attempts whose containers have changed
    nodes: dict[str, None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.apps or self.attempts or self.containers or self.nodes)


@dataclass(frozen=True, slots=True)
class _Summary:
    """What is published as a whole."""

    queues: Sequence[QueueInfo]
    metrics: ClusterMetrics
    handled: int
    """Events that all dispatchers had handled by then."""


_FREE: Final = Cost()
_NONE = Resource(0, 0)
_NOTHING: Final = _Summary((), ClusterMetrics(0, 0, 0, 0, 0, 0, 0, 0, 0, _NONE, _NONE, _NONE, _NONE, {}), -1)


class _Settling(NamedTuple):
    """Applications to report again once the scheduler, on its own thread, has handled its first `accepted` events.

    What the scheduler then does, such as dropping the asks of an ended attempt, may not lead to another transition.
    """

    accepted: int
    apps: set[str]


class ModelPublisher:
    """Makes publications of one resource manager, for one reader."""

    def __init__(self, manager: ResourceManager, *, mail_ns: int = MAIL_NS) -> None:
        self.clock_ms: Callable[[], int] = manager.context.now_ms
        """The resource manager's clock, Unix ms. Any thread."""
        # Never changes, like the next four:
        self._context = manager.context
        self._recorder = manager.recorder
        self._dispatchers = manager.dispatchers
        self._executor = manager.dispatcher.mailbox_executor
        self._mail_ns = mail_ns
        # Handler thread:
        self._changes: Changes | None = None
        self._work: Iterator[Publication | None] | None = None  # the publication that is being made
        self._cost = _FREE  # of its mails until now
        self._taken_over: set[str] = set()  # attempts whose inherited containers were published as theirs
        self._published = Published()
        self._settling: deque[_Settling] = deque()
        self._last = _NOTHING
        self._shares_of: object = None  # the capacities that the shares in the applications' reports are of
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
        until_ns = time.perf_counter_ns() + self._mail_ns
        try:
            for publication in self._work:
                if publication is not None or time.perf_counter_ns() >= until_ns:
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
        dirty, is_whole = _Dirty(), False
        changed = self._changes.take() if self._changes is not None else None
        if changed is None:
            self._changes = self._recorder.follow(RMNodeEventType.STATUS_UPDATE)
        if changed is None or not changed.is_complete:
            is_whole = True
            yield from self._everything(dirty)
            heard: Iterable[RMNode] = list(self._context.nodes.values())
        else:
            yield from self._sort(changed, dirty)
            heard = changed.routine
        yield None
        is_new_share = yield from self._mark_shares(dirty, at_ns, is_whole)
        apps: dict[str, ApplicationReport | None] = {}
        yield from self._fill(apps, dirty.apps, self._app)
        if is_new_share:
            now_ns = time.monotonic_ns()
            self._shares_at_ns = now_ns + _SHARES_EVERY * (now_ns - at_ns)
        attempts: dict[str, tuple[ApplicationAttemptReport, ...] | None] = {}
        yield from self._fill(attempts, dirty.attempts, self._attempts)
        containers: dict[str, dict[str, ContainerReport] | None] = {}
        yield from self._fill(containers, dirty.containers, self._published.containers_of)
        nodes: dict[str, NodeReport | None] = {}
        yield from self._fill(nodes, dirty.nodes, self._node)
        heartbeats: dict[str, int] = {}
        for number, node in enumerate(heard):
            heartbeats[node.entity] = node.last_heartbeat_ms
            if number % _SORT_EVERY == 0:
                yield None
        before = self._last
        last = self._last = yield from self._summary(bool(dirty))
        is_news = is_whole or bool(dirty) or (last.queues, last.metrics) != (before.queues, before.metrics)
        entities = apps, attempts, containers, nodes
        timestamp = self._context.cluster_timestamp
        yield Publication(is_whole, at_ns, is_news, *entities, last.queues, last.metrics, heartbeats, timestamp, _FREE)

    def _summary(self, is_dirty: bool) -> Generator[None, None, _Summary]:
        """What is published as a whole; as before if no dispatcher has done anything since."""
        last = self._last
        handled = sum(dispatcher.handled for dispatcher in self._dispatchers)
        if handled == last.handled and not is_dirty:
            return last
        try:
            queues = yield from self._queues()
            return _Summary(queues, cluster_metrics(self._context, self._published.nodes), handled)
        except Exception as error:
            self._tell_of("the queues", error)
            return last

    def _queues(self) -> Generator[None, None, tuple[QueueInfo, ...]]:
        """All queues, one at a time: a report on one costs as much as it and those below it have users."""
        found = []
        for path in self._context.scheduler.queue_paths():
            info = self._context.scheduler.queue_info(path)
            if info is not None:
                found.append(info)
            yield
        return tuple(found)

    # -- what has changed ----------------------------------------------------------------------------------------------

    def _sort(self, changed: Changed, dirty: _Dirty) -> Iterator[None]:
        """Note whose reports have to be made anew."""
        accepted, handled = self._scheduler_counts()
        while self._settling and self._settling[0].accepted <= handled:
            dirty.apps.update(dict.fromkeys(self._settling.popleft().apps))
        unsettled: set[str] = set()
        for number, operand in enumerate(changed.operands):
            if number % _SORT_EVERY == 0:
                yield
            try:
                self._mark(dirty, operand, unsettled)
            except Exception as error:
                self._tell_of(operand.entity, error)
        lost_nodes = set()
        for number, (machine, id) in enumerate(changed.forgotten):
            if number % _SORT_EVERY == 0:
                yield
            if machine == RMApp.machine:
                dirty.apps[id] = dirty.attempts[id] = None
                unsettled.discard(id)
            elif machine == RMAppAttempt.machine:
                self._taken_over.discard(id)
                self._published.forget_attempt(id)
                dirty.containers[id] = None
            elif machine == RMNode.machine:
                dirty.nodes[id] = None
                lost_nodes.add(id)
        if lost_nodes:
            yield from self._mark_masters_on(lost_nodes, dirty)
        if unsettled and accepted > handled:
            self._settle_later(accepted, unsettled)

    def _mark(self, dirty: _Dirty, operand: Any, unsettled: set[str]) -> None:
        if type(operand) is RMContainer:
            self._take_container(dirty, operand, operand.entity in self._context.containers)
            dirty.apps[operand.application] = None
            dirty.nodes[operand.node] = None
        elif isinstance(operand, RMAppAttempt):
            self._mark_attempt(dirty, operand)
        elif isinstance(operand, RMApp):
            dirty.apps[operand.entity] = None
            if not operand.attempts:
                dirty.attempts[operand.entity] = None
            unsettled.add(operand.entity)
        elif isinstance(operand, RMNode):
            dirty.nodes[operand.entity] = None

    def _scheduler_counts(self) -> tuple[int, int]:
        """Events that the scheduler has been sent, and that it has dealt with. It may have no thread of its own."""
        if len(self._dispatchers) == 1:
            return 0, 0
        stats = self._dispatchers[1].stats()
        return stats.accepted, stats.accepted - stats.queue_size - stats.in_hand

    def _settle_later(self, accepted: int, apps: set[str]) -> None:
        if len(self._settling) >= _MOST_SETTLING:  # the scheduler is far behind
            apps |= self._settling.pop().apps
        self._settling.append(_Settling(accepted, apps))

    def _mark_attempt(self, dirty: _Dirty, attempt: RMAppAttempt) -> None:
        app = attempt.app
        dirty.apps[app.entity] = dirty.attempts[app.entity] = None
        if attempt.number == 1 or not app.submission.keep_containers_across_attempts or attempt.state in _NOT_ADDED:
            return
        # The scheduler has given it the containers of the attempt before, without a transition of theirs.
        if attempt.entity not in self._taken_over and attempt.entity in self._context.attempts:
            self._taken_over.add(attempt.entity)
            for container in self._context.scheduler.live_containers(attempt.entity):
                self._take_container(dirty, container, container.entity in self._context.containers)

    def _take_container(self, dirty: _Dirty, container: RMContainer, is_live: bool) -> None:
        dirty.containers[container.attempt] = None
        if container.attempt != container.maker:  # it was taken over, and may be published as another attempt's
            app = self._context.apps.get(container.application)
            others = [each.entity for each in app.attempts if each.entity != container.attempt] if app else ()
            for attempt_id in self._published.take_from(others, container.entity):
                dirty.containers[attempt_id] = None
        self._published.take_container(container, is_live)

    def _mark_masters_on(self, lost_nodes: set[str], dirty: _Dirty) -> Iterator[None]:
        """Nodes were forgotten: the attempts whose masters ran there no longer have their addresses."""
        for number, attempt in enumerate(list(self._context.attempts.values())):
            if attempt.master_node in lost_nodes:
                dirty.attempts[attempt.app.entity] = None
            if number % _LOOKS_EVERY == 0:
                yield

    def _mark_shares(self, dirty: _Dirty, now_ns: int, is_whole: bool) -> Generator[None, None, bool]:
        """If capacities have changed, so have the shares of all applications; returns whether these are marked."""
        try:
            root = self._context.scheduler.queue_info("root")
        except Exception as error:
            self._tell_of("the root queue", error)
            return False
        assert root is not None  # every scheduler has it
        yield
        capacities = [(each.partition, each.guaranteed) for each in root.partitions]
        if not is_whole and (capacities == self._shares_of or now_ns < self._shares_at_ns):
            return False
        self._shares_of = capacities
        if is_whole:
            return True
        for number, (id, app) in enumerate(list(self._context.apps.items())):
            if app.state not in FINAL_STATES:
                dirty.apps[id] = None
            if number % _LOOKS_EVERY == 0:
                yield
        return True

    def _everything(self, dirty: _Dirty) -> Iterator[None]:
        context = self._context
        self._taken_over.clear()
        self._settling.clear()
        self._published = Published()
        dirty.apps.update(dict.fromkeys(context.apps))
        dirty.attempts.update(dirty.apps)
        dirty.nodes.update(dict.fromkeys((*context.nodes, *context.inactive_nodes)))
        # A copy in one step: the scheduler's thread adds containers at the same time.
        for number, container in enumerate(list(context.containers.values())):
            if number % _LOOK_EVERY == 0:
                yield
            try:
                self._take_container(dirty, container, container.entity in context.containers)
            except Exception as error:
                self._tell_of(container.entity, error)

    # -- reports -------------------------------------------------------------------------------------------------------

    def _app(self, id: str) -> ApplicationReport | None:
        app = self._context.apps.get(id)
        if app is None:
            return None
        attempt = app.current_attempt
        live = self._published.sums_of(attempt.entity) if attempt is not None else None
        return reports.application_report(self._context, app, live or _NO_CONTAINERS)

    def _attempts(self, app_id: str) -> tuple[ApplicationAttemptReport, ...] | None:
        app = self._context.apps.get(app_id)
        return tuple(reports.attempt_report(self._context, it) for it in app.attempts) if app is not None else None

    def _node(self, id: str) -> NodeReport | None:
        context = self._context
        node = context.nodes.get(id) or context.inactive_nodes.get(id)
        report = reports.node_report(context, node) if node is not None else None
        self._published.take_node(id, report)
        return report

    def _fill(self, made: dict[str, T | None], ids: Iterable[str], report: Callable[[str], T | None]) -> Iterator[None]:
        """Report on each id, and yield now and then. An id whose report fails keeps its last one until it changes."""
        for number, id in enumerate(ids, 1):
            try:
                made[id] = report(id)
            except Exception as error:
                self._tell_of(id, error)
            if number % _LOOK_EVERY == 0:
                yield
        yield

    def _tell_of(self, what: str, error: Exception) -> None:
        """Log a failed report: not each of them, since one that fails may fail with each publication."""
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
