"""The state that the parts of a resource manager share, after YARN's RMContext.

It belongs to the dispatcher's handler thread (invariant 1); other threads send an event or a mail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dispatcher import AsyncDispatcher
from dispatcher.mailbox import ProcessingTimeService
from statemachines.factory import StateMachineFactory
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import MASTER_SILENT, RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.machines import rmapp_table, rmappattempt_table, rmcontainer, rmnode_table
from statemachines.resourcemanager.machines.liveliness import DeadlineMonitor, LivelinessMonitor
from statemachines.resourcemanager.machines.node_changes import NodeChangeLog
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import MasterSession, RMAppAttempt
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.records.acls import QueueACLs
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler

FACTORIES: Mapping[str, StateMachineFactory[Any, Any]] = {
    factory.name: factory
    for factory in (rmapp_table.LIVE, rmappattempt_table.LIVE, rmcontainer.FACTORY, rmnode_table.LIVE)
}
"""The machines' tables, by their names in the journal."""


def _at_once(function: Callable[[], Any]) -> Any:
    return function()


class RMContext:
    """The dispatcher, the clock, the entities by id, and the scheduler, which entities call directly."""

    def __init__(
        self,
        config: ResourceManagerConfig,
        dispatcher: AsyncDispatcher,
        timers: ProcessingTimeService,
        recorder: TransitionRecorder,
        cluster_timestamp: int,
        *,
        scheduler: Callable[[RMContext], ResourceScheduler],
        now_ms: Callable[[], int] | None = None,
        steady_ms: Callable[[], int] | None = None,
        expires: bool = True,
        call: Callable[[Callable[[], Any]], Any] = _at_once,
        execute: Callable[[Callable[[], Any]], Any] = _at_once,
        on_handler_thread: Callable[[], bool] = lambda: True,
    ) -> None:
        """`scheduler` makes the scheduler from the otherwise complete context.

        `now_ms`: a faster way to the time of `timers`. `steady_ms`: a monotonic clock for liveliness; None: `now_ms`.
        `expires` False: silent nodes and masters are never lost, as they report changes only.
        `call` runs a function on the handler thread and returns its result; `execute` does not wait for it.
        """
        self.config = config
        self.acls: QueueACLs = QueueACLs(config)  # any thread
        self.factories: Mapping[str, StateMachineFactory[Any, Any]] = {
            name: recorder.recorded(factory) for name, factory in FACTORIES.items()
        }
        self.post: Callable[[Any], bool] = dispatcher.event_handler.handle
        self.timers = timers
        self.now_ms: Callable[[], int] = now_ms or timers.current_processing_time
        self.steady_ms: Callable[[], int] = steady_ms or self.now_ms
        self.recorder = recorder
        self.cluster_timestamp = cluster_timestamp
        self.epoch = 0  # restarts of the resource manager; set before the handler thread starts
        self.call = call
        self.execute = execute
        self.on_handler_thread = on_handler_thread
        self.apps: dict[str, RMApp] = {}
        self.attempts: dict[str, RMAppAttempt] = {}
        self.containers: dict[str, RMContainer] = {}  # live ones
        self.nodes: dict[str, RMNode] = {}
        self.inactive_nodes: dict[str, RMNode] = {}
        self.node_labels: dict[str, str] = {}  # by node: the partition that an administrator gave it
        self.node_capacities: dict[str, Resource] = {}  # by node: the capacity that an administrator gave it
        self.master_sessions: dict[str, MasterSession] = {}  # by attempt: masters that may call
        self.node_changes: NodeChangeLog = NodeChangeLog()
        am_ms = round(config.am_expiry_interval_s * 1000) if expires else None
        nm_ms = round(config.nm_expiry_interval_s * 1000) if expires else None
        self.am_liveliness_monitor: LivelinessMonitor = self._monitor(
            "AMLivelinessMonitor", am_ms, self._expire_attempt
        )
        self.am_finishing_monitor: LivelinessMonitor = self._monitor("AMFinishingMonitor", am_ms, self._expire_attempt)
        self.nm_liveliness_monitor: LivelinessMonitor = self._monitor("NMLivelinessMonitor", nm_ms, self._expire_node)
        self.container_allocation_expirer: LivelinessMonitor = self._monitor(
            "ContainerAllocationExpirer", round(config.container_allocation_expiry_s * 1000), self._expire_container
        )
        self.app_lifetime_monitor: DeadlineMonitor = DeadlineMonitor(
            "RMAppLifetimeMonitor", self.now_ms, self._end_lifetime
        )
        self.scheduler: ResourceScheduler = scheduler(self)

    @property
    def monitors(self) -> tuple[LivelinessMonitor | DeadlineMonitor, ...]:
        """All monitors that can expire something."""
        liveliness = (
            self.am_liveliness_monitor,
            self.am_finishing_monitor,
            self.nm_liveliness_monitor,
            self.container_allocation_expirer,
        )
        return (*(each for each in liveliness if each.interval_ms is not None), self.app_lifetime_monitor)

    def _monitor(self, name: str, interval_ms: int | None, expire: Callable[[str], None]) -> LivelinessMonitor:
        return LivelinessMonitor(name, interval_ms, self.steady_ms, expire)

    def _expire_attempt(self, attempt_id: str) -> None:
        self.post(RMAppAttemptEvent(RMAppAttemptEventType.EXPIRE, attempt_id, MASTER_SILENT))

    def _expire_node(self, node_id: str) -> None:
        self.post(RMNodeEvent(RMNodeEventType.EXPIRE, node_id))

    def _expire_container(self, container_id: str) -> None:
        self.post(SchedulerEvent(SchedulerEventType.CONTAINER_EXPIRED, container_id))

    def _end_lifetime(self, app_id: str) -> None:
        self.post(RMAppEvent(RMAppEventType.KILL, app_id, "killed: its lifetime has expired"))
