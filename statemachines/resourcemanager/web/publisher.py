"""Publishes what has changed in the resource manager, for the read model of the web address.

Threading: `publish_some`, `publish_heartbeats` and `close` are for any thread, one call after another; the rest is the
handler thread's, and this is the only module of the package that touches its state. A publication is made in mails of a
few milliseconds each; whatever changes between two of them is in the next publication as well. Nothing is collected,
and nothing costs, before the first call and after `close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from dispatcher.errors import RejectedExecutionError
from statemachines.changes import Changes
from statemachines.resourcemanager import reports
from statemachines.resourcemanager.events.rmnode import RMNodeEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.reports import (
    ApplicationAttemptReport,
    ApplicationReport,
    ClusterMetrics,
    ContainerReport,
    NodeReport,
)
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo

if TYPE_CHECKING:
    from statemachines.resourcemanager.resource_manager import ResourceManager

T = TypeVar("T")

MAIL_NS: Final = 5_000_000
"""How long one mail works at most, but for its last report: half of what may be, since a report may be a large one."""
_LOOK_EVERY: Final = 8
"""Reports between two looks at the clock."""
_WITHOUT_ROOM: Final = frozenset({RMContainerState.NEW, RMContainerState.RESERVED})
_NOT_ADDED: Final = frozenset({RMAppAttemptState.NEW, RMAppAttemptState.SUBMITTED})


@dataclass(frozen=True, slots=True)
class Publication:
    """What has changed since the publication before; None for what is gone. Immutable: any thread may read it."""

    is_whole: bool
    """It replaces all that was published before."""
    at_ns: int
    """When it was begun, by `time.monotonic_ns`: all that was done before is in it."""
    is_news: bool
    """False: nothing has changed."""
    apps: Mapping[str, ApplicationReport | None]
    attempts: Mapping[str, tuple[ApplicationAttemptReport, ...] | None]
    """By application."""
    containers: Mapping[str, ContainerReport | None]
    nodes: Mapping[str, NodeReport | None]
    queues: Sequence[QueueInfo]
    """All of them."""
    metrics: ClusterMetrics
    cluster_timestamp: int
    """Unix ms; in the ids of applications."""


@dataclass(slots=True)
class _Dirty:
    """What a publication has to report, by id."""

    apps: dict[str, None] = field(default_factory=dict)  # dicts: in the order of the change
    attempts: dict[str, None] = field(default_factory=dict)  # applications whose attempts have changed
    containers: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.apps or self.attempts or self.containers or self.nodes)


class ModelPublisher:
    """Makes publications of one resource manager, for one reader."""

    def __init__(self, manager: ResourceManager, *, mail_ns: int = MAIL_NS) -> None:
        self.clock_ms: Callable[[], int] = manager.context.now_ms
        """The resource manager's clock, Unix ms. Any thread."""
        # Never changes, like the next three:
        self._context = manager.context
        self._recorder = manager.recorder
        self._dispatchers = manager.dispatchers
        self._executor = manager.dispatcher.mailbox_executor
        self._mail_ns = mail_ns
        # Handler thread:
        self._changes: Changes | None = None
        self._work: Iterator[Publication | None] | None = None  # the publication that is being made
        self._taken_over: set[str] = set()  # attempts whose inherited containers were published as theirs
        self._last: tuple[Sequence[QueueInfo], ClusterMetrics] | None = None
        self._seen = -1  # what the dispatchers had handled when `_last` was made

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
        work = self._work
        if work is None:
            work = self._work = self._publication()
        until_ns = time.perf_counter_ns() + self._mail_ns
        try:
            for publication in work:
                if publication is not None:
                    self._work = None
                    return publication
                if time.perf_counter_ns() >= until_ns:
                    return None
        except BaseException:
            self._work = None
            self._end()  # the next one is whole
            raise
        raise AssertionError("the last item is the publication")

    def _publication(self) -> Iterator[Publication | None]:
        """Yields None now and then, and at last the publication."""
        at_ns = time.monotonic_ns()
        dirty, is_whole = self._take_dirty()
        apps: dict[str, ApplicationReport | None] = {}
        yield from _fill(apps, dirty.apps, self._app)
        attempts: dict[str, tuple[ApplicationAttemptReport, ...] | None] = {}
        yield from _fill(attempts, dirty.attempts, self._attempts)
        containers: dict[str, ContainerReport | None] = {}
        yield from _fill(containers, dirty.containers, self._container)
        nodes: dict[str, NodeReport | None] = {}
        yield from _fill(nodes, dirty.nodes, self._node)
        queues, metrics = self._summary(bool(dirty))
        is_news = is_whole or bool(dirty) or (queues, metrics) != self._last
        self._last = queues, metrics
        yield Publication(
            is_whole,
            at_ns,
            is_news,
            apps,
            attempts,
            containers,
            nodes,
            queues,
            metrics,
            self._context.cluster_timestamp,
        )

    def _summary(self, is_dirty: bool) -> tuple[Sequence[QueueInfo], ClusterMetrics]:
        """Queues and metrics; those of before if no dispatcher has done anything since."""
        seen = sum(dispatcher.handled for dispatcher in self._dispatchers)
        if self._last is not None and not is_dirty and seen == self._seen:
            return self._last
        self._seen = seen
        return self._context.scheduler.queues(), reports.cluster_metrics(self._context)

    # -- what has changed ----------------------------------------------------------------------------------------------

    def _take_dirty(self) -> tuple[_Dirty, bool]:
        if self._changes is None:
            self._changes = self._recorder.follow(RMNodeEventType.STATUS_UPDATE)
            return self._everything(), True
        changed = self._changes.take()
        if not changed.is_complete:
            return self._everything(), True
        dirty = _Dirty()
        for operand in changed.operands:
            if isinstance(operand, RMContainer):
                dirty.containers[operand.entity] = None
                dirty.apps[operand.application] = None
                dirty.nodes[operand.node] = None
            elif isinstance(operand, RMAppAttempt):
                self._mark_attempt(dirty, operand)
            elif isinstance(operand, RMApp):
                dirty.apps[operand.entity] = None
            elif isinstance(operand, RMNode):
                dirty.nodes[operand.entity] = None
        for machine, entity in changed.forgotten:
            if machine == RMApp.machine:
                dirty.apps[entity] = dirty.attempts[entity] = None
            elif machine == RMAppAttempt.machine:
                self._taken_over.discard(entity)
            elif machine == RMNode.machine:
                dirty.nodes[entity] = None
        return dirty, False

    def _mark_attempt(self, dirty: _Dirty, attempt: RMAppAttempt) -> None:
        app = attempt.app
        dirty.apps[app.entity] = dirty.attempts[app.entity] = None
        if attempt.number == 1 or not app.submission.keep_containers_across_attempts or attempt.state in _NOT_ADDED:
            return
        # The scheduler has given it the containers of the attempt before, without a transition of theirs.
        if attempt.entity not in self._taken_over and attempt.entity in self._context.attempts:
            self._taken_over.add(attempt.entity)
            for container in self._context.scheduler.live_containers(attempt.entity):
                dirty.containers[container.entity] = None

    def _everything(self) -> _Dirty:
        context = self._context
        apps = dict.fromkeys(context.apps)
        # A copy in one step: the scheduler's thread adds containers at the same time.
        containers = dict.fromkeys(list(context.containers))
        self._taken_over.clear()
        return _Dirty(apps, apps.copy(), containers, dict.fromkeys((*context.nodes, *context.inactive_nodes)))

    # -- reports -------------------------------------------------------------------------------------------------------

    def _app(self, id: str) -> ApplicationReport | None:
        app = self._context.apps.get(id)
        return reports.application_report(self._context, app) if app is not None else None

    def _attempts(self, app_id: str) -> tuple[ApplicationAttemptReport, ...] | None:
        app = self._context.apps.get(app_id)
        return tuple(map(reports.attempt_report, app.attempts)) if app is not None else None

    def _container(self, id: str) -> ContainerReport | None:
        container = self._context.containers.get(id)
        if container is None or container.state in _WITHOUT_ROOM:
            return None
        return reports.container_report(container)

    def _node(self, id: str) -> NodeReport | None:
        context = self._context
        node = context.nodes.get(id) or context.inactive_nodes.get(id)
        return reports.node_report(context, node) if node is not None else None


def _fill(made: dict[str, T | None], ids: Iterable[str], report: Callable[[str], T | None]) -> Iterator[None]:
    """Report on each id, and yield now and then."""
    for number, id in enumerate(ids, 1):
        made[id] = report(id)
        if number % _LOOK_EVERY == 0:
            yield
    yield
