"""What the web address answers from: reports of all entities, as of the last publication.

Threading: one loop's thread. It asks the handler thread for a publication every `refresh_ms`, one at a time, so while a
handler hangs the model stays as it is. Nothing that the model holds is ever changed: a publication replaces the
mappings. An endpoint that reads several of them without an `await` in between, or takes references to them first, sees
one publication.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.service import ServiceState
from dispatcher.util.foreign import tell
from statemachines.resourcemanager.read.hangs import Hang, longest_hang
from statemachines.resourcemanager.read.loop_follower import LoopFollower, is_cancelled
from statemachines.resourcemanager.read.operations import SchedulerRun
from statemachines.resourcemanager.read.published import Publication
from statemachines.resourcemanager.read.publisher import ModelPublisher
from statemachines.resourcemanager.read.tallies import Tallies
from statemachines.resourcemanager.records.resource import MaximumAllocation
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

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_SHARE: Final = 0.03
"""Of the handler thread's time, for publications while it has no time to spare. If they take more, they come less often
than every `refresh_ms`..."""
LONGEST_PAUSE_S: Final = 5.0
"""... but not less often than this."""
SPARE_SHARE: Final = 0.5
"""Of the time that all handler threads together leave idle, for publications."""
_RETRY_S: Final = 1.0
CHOICES_KEPT: Final = 8
"""Sets of states whose applications are remembered for one publication, so that no client makes them many."""

FAILURES_KEPT: Final = 50_000
"""Exit statuses of ended containers: as many failures as the transitions kept by default can tell of."""


class ReadModel(LoopFollower):
    """The reports of one resource manager. One loop's thread; see the module."""

    def __init__(self, manager: ResourceManager, refresh_ms: int = 250) -> None:
        super().__init__()
        self.apps: dict[str, ApplicationReport] = {}
        """By id, in the order of their start; the id breaks ties."""
        self.attempts: dict[str, tuple[ApplicationAttemptReport, ...]] = {}
        """By application, each by number. Those of a new application may come with the next publication."""
        self.containers: dict[str, dict[str, ContainerReport]] = {}
        """Live ones by attempt, for attempts that have some; each in the order of first publication."""
        self.failures: OrderedDict[str, int] = OrderedDict()
        """The exit statuses other than 0 of the last containers that ended, by id; changed in place."""
        self.nodes: dict[str, NodeReport] = {}
        """By id, inactive ones too. Heartbeats alone do not renew a report: ask `heartbeat_ms`."""
        self.queues: tuple[QueueInfo, ...] = ()
        """Parents before children, the root first."""
        self.metrics: ClusterMetrics = ClusterMetrics()
        self.run: SchedulerRun = SchedulerRun()
        """What the scheduler has done since this address began to follow it."""
        self.ended_apps: Counter[tuple[str, str]] = Counter()
        """Applications that are no longer kept, by queue and state, since then; changed in place."""
        self.tallies: Tallies = Tallies()
        """Counts of `apps`; changed in place."""
        self.number: int = 0
        """Of the last publication with news; 0: there was none yet, and the model is empty."""
        # By states, of the applications in front of it, which are those of the last publication that was asked for some
        self._chosen: tuple[dict[str, ApplicationReport], dict[frozenset[str], Collection[ApplicationReport]]] = {}, {}
        self.manager: ResourceManager = manager
        self.cluster_timestamp: int = 0
        """Unix ms: the middle part of the ids of new applications."""
        self._publisher = ModelPublisher(manager)
        self._refresh_s = refresh_ms / 1000
        self._heartbeats_ms: dict[str, int] = {}  # by node; changed in place
        self._at_ns = time.monotonic_ns()  # of the state that the model has
        self._begun = 0  # publications asked for
        self._done = 0  # the last of them that is in the model
        self._ask = asyncio.Event()  # ask for the next one now
        self._waiting: set[asyncio.Future[None]] = set()  # woken by each publication

    @property
    def node_labels(self) -> tuple[str, ...]:
        """Partitions that queues or nodes name, sorted; without the default one."""
        labels = {label for queue in self.queues for label in queue.accessible_node_labels}
        labels.update(node.partition for node in self.nodes.values())
        return tuple(sorted(labels - {""}))

    def is_active(self) -> bool:
        """Whether the resource manager serves: it is started, has not failed, and does not stop."""
        manager = self.manager
        return (
            self.number > 0
            and manager.in_state(ServiceState.STARTED)
            and not manager.is_ending()
            and manager.dispatcher.failure_cause is None
        )

    def is_readable(self) -> bool:
        """Whether there is something to show: the resource manager is started, and there was a publication.

        A handler that hangs, or has failed, leaves the last one readable.
        """
        return self.number > 0 and self.manager.in_state(ServiceState.STARTED)

    def apps_in(self, states: frozenset[str] | None) -> Collection[ApplicationReport]:
        """The applications in any of these states, in the order of `apps`; None: all of them. It is never changed.

        They are looked for once for each publication, however many requests ask for them.
        """
        apps = self.apps
        if states is None:
            return apps.values()
        if self._chosen[0] is not apps or len(self._chosen[1]) >= CHOICES_KEPT:
            self._chosen = apps, {}
        chosen = self._chosen[1]
        found = chosen.get(states)
        if found is None:
            found = chosen[states] = [report for report in apps.values() if report.state in states]
        return found

    @property
    def maximum_allocation(self) -> MaximumAllocation:
        """The largest container by the configuration of the scheduler. Queues may have less."""
        config = self.manager.settings.scheduler
        cores = config.maximum_allocation_vcores
        return MaximumAllocation(config.maximum_allocation_mb, None if cores is None else cores * 1000)

    def may_lack_nodes(self) -> bool:
        """The start is so short a time ago that nodes may still register: their sizes are no maximum yet."""
        wait_ms = self.manager.settings.scheduler.maximum_allocation_wait_ms
        return self.now_ms() - self.cluster_timestamp <= wait_ms

    def queue_sizes(self) -> tuple[int, int]:
        """Events that wait now: for the central dispatcher, and for the scheduler where it has a thread of its own."""
        manager = self.manager
        scheduler = sum(each.queue_size() for each in manager.scheduler_path if each is not manager.dispatcher)
        return manager.dispatcher.queue_size(), scheduler

    def now_ms(self) -> int:
        """Unix ms of the resource manager's clock."""
        return self._publisher.clock_ms()

    def age_ms(self) -> int:
        """How long ago the handler thread said that this is the state, also if nothing had changed."""
        return max(0, time.monotonic_ns() - self._at_ns) // 1_000_000

    def heartbeat_ms(self, node_id: str) -> int | None:
        """When a node was heard of last, Unix ms; None: there is no such node."""
        report = self.nodes.get(node_id)
        if report is None:
            return None
        return max(report.last_heartbeat_ms, self._heartbeats_ms.get(node_id, 0))

    def hang(self) -> Hang | None:
        """The handler thread that has been busy with one event or mail for more than a second, if any."""
        return longest_hang(dispatcher.view for dispatcher in self.manager.dispatchers)

    async def published(self, timeout_s: float) -> None:
        """Return once all that the handler thread did before this call is in the model.

        Raises TimeoutError: the handler thread was busy with something else for `timeout_s`.
        """
        wanted = self._begun + 1
        self._ask.set()
        async with asyncio.timeout(timeout_s):
            while self._done < wanted:
                await self._next()

    async def changed(self, after: int) -> int:
        """Wait for a publication with a number greater than `after`; returns the last one's."""
        while self.number <= after:
            await self._next()
        return self.number

    # -- following the resource manager --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ask for no more publications. The handler thread then stops collecting changes."""
        await super().close()
        self._publisher.close()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        dispatchers = self.manager.dispatchers
        spare = SpareTime(len(dispatchers), lambda: sum(each.stats().idle_s for each in dispatchers))
        while True:
            next_s = loop.time() + self._refresh_s
            self._ask.clear()
            self._begun = begun = self._begun + 1
            try:
                publication = await self._collect()
                next_s = max(next_s, loop.time() + pause_s(publication.cost.cpu_ns, spare.share()))
                self.apply(publication)
            except (RejectedExecutionError, asyncio.CancelledError):
                if is_cancelled():
                    raise
                return  # the resource manager has stopped
            except Exception as error:
                tell(log, logging.ERROR, "a publication for the web address has failed", error=error)
                self._publisher.close()  # part of it may be lost, so the next one is whole
                next_s = loop.time() + _RETRY_S
            else:
                self._done = begun
                self._wake()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._ask.wait()

    async def _collect(self) -> Publication:
        """Have the handler thread make a publication, mail by mail."""
        while True:
            publication = await asyncio.wrap_future(self._publisher.publish_some())
            if publication is not None:
                return publication

    async def _next(self) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await woken
        finally:
            self._waiting.discard(woken)

    def _wake(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    # -- applying a publication ----------------------------------------------------------------------------------------

    def apply(self, publication: Publication) -> None:
        """Make the publication the present state."""
        self._at_ns = publication.at_ns
        self.failures.update(publication.failures)
        self.ended_apps.update(publication.gone_apps)
        while len(self.failures) > FAILURES_KEPT:
            self.failures.popitem(last=False)
        if publication.is_whole:
            self._heartbeats_ms = {}
        self._heartbeats_ms.update(publication.heartbeats_ms)
        if not publication.is_news:
            return
        if publication.is_whole:
            gone = (report for id, report in self.apps.items() if publication.apps.get(id) is None)
            self.ended_apps.update((report.queue, report.state) for report in gone)
            self.apps, self.attempts, self.containers, self.nodes = {}, {}, {}, {}
            self.tallies = Tallies()
        self._apply_apps(publication.apps)
        self.attempts = _merged(self.attempts, publication.attempts)
        self.containers = _merged(self.containers, publication.containers)
        self.nodes = _merged(self.nodes, publication.nodes)
        for id, node in publication.nodes.items():
            if node is None:
                self._heartbeats_ms.pop(id, None)
        self.queues = tuple(publication.queues)
        self.metrics = publication.metrics
        self.run = publication.run
        self.cluster_timestamp = publication.cluster_timestamp
        self.number += 1

    def _apply_apps(self, changes: Mapping[str, ApplicationReport | None]) -> None:
        before = self.apps
        for id, report in changes.items():
            self.tallies.take(before.get(id), report)
        last = next(reversed(before.values()), None)
        known = {id: report for id, report in changes.items() if report is None or id in before}
        new = sorted((each for id, each in changes.items() if each is not None and id not in before), key=_order)
        apps = _merged(before, known | {each.application_id: each for each in new})
        if new and last is not None and _order(new[0]) < _order(last):  # the clock was set back
            apps = {each.application_id: each for each in sorted(apps.values(), key=_order)}
        self.apps = apps
        if apps is not before:
            self._chosen = {}, {}  # or it would hold all reports of then until it is asked for again


class SpareTime:
    """How much of the interpreter's time the handler threads leave: they share it, whatever the number of cores."""

    def __init__(
        self, threads: int, idle_s: Callable[[], float], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`idle_s()`: seconds that all the `threads` have been idle, added up."""
        self._threads = threads
        self._total_idle_s = idle_s
        self._clock_s = clock_s
        self._at_s, self._idle_s = clock_s(), idle_s()

    def share(self) -> float:
        """Of the time since the last call, 0 to 1."""
        before_s, idle_before_s = self._at_s, self._idle_s
        self._at_s, self._idle_s = self._clock_s(), self._total_idle_s()
        took_s = self._at_s - before_s
        if took_s <= 0:
            return 0.0
        busy = self._threads - (self._idle_s - idle_before_s) / took_s
        return min(1.0, max(0.0, 1.0 - busy))


def pause_s(cost_ns: int, spare_share: float) -> float:
    """Seconds until the next publication, after one of that cost, so that they take no more than their share."""
    return min(LONGEST_PAUSE_S, cost_ns / 1e9 / max(BUSY_SHARE, SPARE_SHARE * spare_share))


def _merged(before: dict[str, T], changes: Mapping[str, T | None]) -> dict[str, T]:
    """A copy with the changes; None removes an entry. The same mapping if there are none."""
    if not changes:
        return before
    after = before.copy()
    for id, value in changes.items():
        if value is None:
            after.pop(id, None)
        else:
            after[id] = value
    return after


def _order(app: ApplicationReport) -> tuple[int, int, int, str]:
    timestamp, _, number = app.application_id.removeprefix("application_").partition("_")
    return app.start_ms, int(timestamp), int(number), app.application_id
