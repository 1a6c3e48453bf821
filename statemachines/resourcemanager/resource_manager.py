"""The resource manager: a composite service around one AsyncDispatcher."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    DispatcherGroup,
    EventDispatcher,
    JournalWriter,
    MetricsServer,
    register_metrics,
)
from dispatcher.mailbox import MailboxTimeService, ManualClock, ProcessingTimeService, SystemProcessingTimeService
from dispatcher.metrics import MetricsSource
from dispatcher.service import Service, ServiceState, stop_on_failure
from dispatcher.util.functions import require_kind, require_plain
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmapp import RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEventType
from statemachines.resourcemanager.events.scheduler import SchedulerEventType
from statemachines.resourcemanager.events.services import (
    AMLauncherEventType,
    NodesListManagerEventType,
    RMAppManagerEventType,
    RMFatalEvent,
    RMFatalEventType,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.entity import EntityEventHandler
from statemachines.resourcemanager.machines.liveliness import DeadlineMonitor, LivelinessMonitor
from statemachines.resourcemanager.machines.rmcontainer import CONTAINER_FINAL_STATES, RMContainer
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.records.stored_state import RMState
from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler
from statemachines.resourcemanager.scheduler.core.books import SchedulerContext
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler
from statemachines.resourcemanager.services.admin_service import AdminService
from statemachines.resourcemanager.services.application_master_launcher import ApplicationMasterLauncher, NodeManagers
from statemachines.resourcemanager.services.application_master_service import ApplicationMasterService
from statemachines.resourcemanager.services.client_rm_service import ClientRMService
from statemachines.resourcemanager.services.nodes_list_manager import NodeEventDispatcher, NodesListManager
from statemachines.resourcemanager.services.resource_tracker_service import ResourceTrackerService
from statemachines.resourcemanager.services.rm_app_manager import RMAppManager, recover
from statemachines.resourcemanager.services.scheduling_monitor import SchedulingMonitor
from statemachines.resourcemanager.services.virtual_time import VirtualTime
from statemachines.resourcemanager.statestore.sqlite import SqliteRMStateStore
from statemachines.resourcemanager.statestore.store import MemoryRMStateStore, RMStateStore

log: logging.Logger = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)
_EXPIRE_EVERY_MS = 20
Monitor = LivelinessMonitor | DeadlineMonitor | SchedulingMonitor


class SupportsJoin(Protocol[T_co]):
    """An object that can join a resource manager from any thread, such as a workload with its nodes and clients."""

    def join(self, manager: ResourceManager) -> T_co: ...


def make_scheduler(context: SchedulerContext, on_heartbeat: bool = False) -> ResourceScheduler:
    """The configured scheduler. `on_heartbeat`: it assigns containers on node heartbeats; otherwise as soon as a node
    has room.

    Raises:
        ConfigError: the configured queues do not form a valid tree; names the key.
    """
    kind = CapacityScheduler if context.config.scheduler.kind == "capacity" else FifoScheduler
    return kind(context, on_heartbeat=on_heartbeat)


def _check_kinds(config: object, node_managers: object, clock: object, recorder: object, store: object) -> None:
    require_kind(config, "config", ResourceManagerConfig)
    if node_managers is not None:
        require_plain(node_managers, "node_managers", "takes the resource manager")
    for value, name, kind in (
        (clock, "clock", ManualClock),
        (recorder, "recorder", TransitionRecorder),
        (store, "store", RMStateStore),
    ):
        if value is not None:
            require_kind(value, name, kind)


class ResourceManager(CompositeService):
    """Applications, attempts, containers and nodes as state machines on one dispatcher.

    With a ManualClock it runs in virtual time: when the queue is empty, the handler thread jumps to the next deadline,
    or calls `on_idle` if none is left. Containers are then allocated as soon as there's room, on the handler thread.
    Without a clock it runs in real time: containers are allocated on node heartbeats, the scheduler has a separate
    thread, and silent nodes and masters expire.

    Nodes register with the `tracker`, and the node managers start the masters' containers on them.

    `node_managers`: makes the node managers. By default, there are none until `connect`.
    `recorder`: the listener of all machines. By default, one that counts, and writes to the `journal`, if any.
    `store`: to recover from and write to. By default as configured, or in virtual time, a store in memory.

    From any thread, you can start, stop, read counters and call `clients` and `admin`. The other services (`masters`,
    `tracker`) and all entities belong to the handler thread. To reach them, use `context.call`.
    """

    def __init__(
        self,
        config: ResourceManagerConfig | None = None,
        *,
        node_managers: Callable[[ResourceManager], NodeManagers] | None = None,
        clock: ManualClock | None = None,
        journal: JournalWriter | None = None,
        recorder: TransitionRecorder | None = None,
        store: RMStateStore | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        settings = config if config is not None else ResourceManagerConfig()
        self.settings: ResourceManagerConfig = settings
        _check_kinds(settings, node_managers, clock, recorder, store)
        super().__init__(settings.name)
        # A replay is looked at when it has ended.
        self.recorder: TransitionRecorder = recorder or TransitionRecorder(
            journal, lists_entities=clock is None, ends={RMContainer.machine: CONTAINER_FINAL_STATES}
        )
        self.in_virtual_time: bool = clock is not None
        self._on_idle = on_idle
        self.dispatcher: AsyncDispatcher = AsyncDispatcher(
            settings.dispatcher,
            name=settings.name,
            journal=journal,
            idle_action=self._jump if clock is not None else None,
            clock_ns=clock.current_time_ns if clock is not None else None,
        )
        time_service: ProcessingTimeService
        if clock is not None:
            time_service = clock
        else:
            time_service = system = SystemProcessingTimeService(f"{settings.name}-timers")
            self.add_service(_TimerThread(system))
        self.dispatchers: list[AsyncDispatcher] = [self.dispatcher]
        """All dispatchers, the central one first. Complete once the constructor returns. Thread-safe."""
        self.scheduler_path: list[AsyncDispatcher] = [self.dispatcher]
        """The dispatchers whose queues an event for the scheduler passes, in order, like `dispatchers`. Thread-safe."""
        self.registry: CollectorRegistry = CollectorRegistry()
        self._sources: dict[str, MetricsSource] = {}  # the thread that makes the daemon
        self.metrics_server: MetricsServer | None = None
        if settings.metrics.enabled:
            self.metrics_server = MetricsServer(settings.metrics, self.registry)
            self.add_service(self.metrics_server)

        self._executor = self.dispatcher.mailbox_executor
        timers = MailboxTimeService(time_service, self._executor)
        self.context: RMContext
        self.context = context = RMContext(
            settings,
            self.dispatcher,
            timers,
            self.recorder,
            time_service.current_processing_time(),
            now_ms=time_service.current_processing_time,
            steady_ms=_steady_ms if clock is None else None,
            expires=clock is None,
            scheduler=partial(make_scheduler, on_heartbeat=clock is None),
            call=self._call,
            execute=self._execute,
            on_handler_thread=self.dispatcher.is_handler_thread,
        )
        # Virtual time would pass while a store with its own thread writes.
        self.store: RMStateStore | MemoryRMStateStore = store or (
            MemoryRMStateStore() if clock is not None else _configured_store(settings)
        )
        self.store.attach(context)
        self.started_ms: int = context.now_ms()
        """When it was created, and later when it was started, in Unix ms of its clock. Thread-safe."""
        self._recovered = RMState()  # loaded by the start, before the handler thread runs
        # The first mail: applications are recovered before any node or client is served.
        self._executor.execute(self._recover, "recovery")
        self.clients: ClientRMService = ClientRMService(context)
        self.masters: ApplicationMasterService = ApplicationMasterService(context)
        self.nodes_list_manager: NodesListManager = NodesListManager(context)
        self.admin: AdminService = AdminService(context, self.nodes_list_manager)
        self.tracker: ResourceTrackerService = ResourceTrackerService(context, self.nodes_list_manager)
        self._launcher = ApplicationMasterLauncher(context)
        self.node_managers: NodeManagers | None = None  # handler thread, or before it starts
        self._monitors: tuple[Monitor, ...] = (*context.monitors, *self.nodes_list_manager.monitors)
        if settings.scheduler.preemption.enabled:
            self._monitors += (SchedulingMonitor(context),)
        self._virtual_time: VirtualTime | None = None
        if clock is not None:
            self._virtual_time = VirtualTime(clock, self._monitors, self.dispatcher.has_work)
        # Added before the dispatchers, so that they stop after them, and then fail the calls that still wait.
        for service in (self.clients, self.masters, self.tracker, self.admin, *self._monitors):
            self.add_service(service)
        if isinstance(self.store, Service):
            self.add_service(self.store)
        self._add_dispatchers()
        self._register_handlers()
        self.dispatcher.register_service_listener(self._on_dispatcher)
        if node_managers is not None:
            self.connect(node_managers(self))

    @property
    def scheduler_name(self) -> str:
        """The name of the scheduler's class. Thread-safe."""
        return type(self.context.scheduler).__name__

    @property
    def store_name(self) -> str:
        """The name of the state store's class. Thread-safe."""
        return type(self.store).__name__

    def connect(self, node_managers: NodeManagers) -> None:
        """Launch masters through `node_managers` from now on. Call it on the handler thread, or before the start."""
        self.node_managers = node_managers
        self._launcher.node_managers = node_managers
        if self._virtual_time is not None and node_managers.deadlines is not None:
            self._virtual_time.follow(node_managers.deadlines)

    def bring(self, newcomer: SupportsJoin[T_co]) -> T_co:
        """Let something join, such as a workload, and return the result of its `join`. Thread-safe."""
        return newcomer.join(self)

    def show_metrics(self, name: str, source: MetricsSource) -> None:
        """Add a source to the central dispatcher's metrics, in place of an earlier one of that name."""
        self._sources[name] = source
        register_metrics(self.dispatcher, self.registry, self._sources.values())

    def service_start(self) -> None:
        self.started_ms = self.context.now_ms()
        self.context.epoch = self.store.get_and_increment_epoch()
        self._recovered = self.store.load_state()
        super().service_start()
        if self._virtual_time is None:
            self._warn_of_open_queues()
            # Also the precision of the deadlines of node managers in this process.
            self.context.timers.schedule_with_fixed_delay(
                lambda _: self._expire_due(), _EXPIRE_EVERY_MS, _EXPIRE_EVERY_MS
            )

    def _recover(self) -> None:
        self.admin.restore(self._recovered)
        recover(self.context, self._recovered)

    def _warn_of_open_queues(self) -> None:
        queues = self.clients.acls.open_to_all()
        if queues:
            log.warning(
                "%s: everyone may submit to %s, whatever acl_submit_applications says: without acl_administer_queue "
                "everyone administers it, because callers may claim any name (web.auth: simple); set "
                'acl_administer_queue there or on a queue above, to " " for nobody',
                self.name,
                ", ".join(queues),
            )

    def _add_dispatchers(self) -> None:
        register, scheduler, members = self.dispatcher.register, self.context.scheduler, self.dispatchers
        if self._virtual_time is not None:
            register(SchedulerEventType, scheduler)
        else:
            behind = EventDispatcher(scheduler, f"{self.name}-scheduler", config=self.settings.dispatcher)
            register(SchedulerEventType, behind)
            members.append(behind)
            self.scheduler_path.append(behind)
        self.add_service(
            DispatcherGroup(
                members, name=f"{self.name}-dispatchers", drain_timeout_s=self.settings.dispatcher.drain_timeout_s
            )
        )
        self.show_metrics("machines", self.recorder)
        self.show_metrics("store", self.store)
        if isinstance(self.store, SqliteRMStateStore):
            members.append(self.store.dispatcher)
        for member in members[1:]:
            register_metrics(member, self.registry)

    def _register_handlers(self) -> None:
        context, register = self.context, self.dispatcher.register
        register(RMAppEventType, EntityEventHandler(context.apps))
        register(RMAppAttemptEventType, EntityEventHandler(context.attempts))
        register(RMContainerEventType, EntityEventHandler(context.containers))
        register(RMNodeEventType, NodeEventDispatcher(context))
        register(NodesListManagerEventType, self.nodes_list_manager)
        register(AMLauncherEventType, self._launcher)
        register(RMStateStoreEventType, self.store)
        register(RMAppManagerEventType, RMAppManager(context))
        register(RMFatalEventType, self._end)

    def _call(self, function: Callable[[], Any]) -> Any:
        """`RMContext.call`."""
        if self.dispatcher.is_handler_thread():
            return function()
        return self._executor.submit(function, "call of %r", function).result()

    def _execute(self, function: Callable[[], Any]) -> None:
        """`RMContext.execute`."""
        self._executor.execute(function, "call of %r", function)

    def _end(self, event: RMFatalEvent) -> None:
        """Stop the resource manager, since it could no longer keep what it has acknowledged."""
        log.critical("%s: %s of %s: stopping", self.name, event.type.name, event.entity, exc_info=event.cause)
        stop_on_failure(self.dispatcher, event.cause or RuntimeError(f"{event.entity}: {event.type.name}"))

    def _on_dispatcher(self, dispatcher: Service) -> None:
        """Fail waiting callers at once when the dispatcher stops by itself, before the resource manager is stopped."""
        if dispatcher.in_state(ServiceState.STOPPED):
            self.clients.stop()
            self.admin.stop()

    def _expire_due(self) -> None:
        if self.node_managers is not None and self.node_managers.deadlines is not None:
            self.node_managers.deadlines.expire_due()
        for each in self._monitors:
            each.expire_due()

    def _jump(self) -> bool:
        """Idle action in virtual time: jump to the next deadline."""
        assert self._virtual_time is not None
        if self._virtual_time.jump():
            return True
        self._on_idle()
        return False


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _configured_store(settings: ResourceManagerConfig) -> RMStateStore:
    config = settings.state_store
    if config.kind == "memory":
        return MemoryRMStateStore()
    assert config.path is not None  # checked by the configuration
    return SqliteRMStateStore(
        config.path,
        batch_size=config.batch_size,
        slow_after_s=config.slow_after_s,
        name=f"{settings.name}-store",
        config=DispatcherConfig(
            handler_warn_after_s=settings.dispatcher.handler_warn_after_s,
            liveness_stuck_after_s=settings.dispatcher.liveness_stuck_after_s,
        ),
        permissions=config.permissions,
    )


class _TimerThread(Service):
    """Stops the real clock's thread."""

    def __init__(self, timers: SystemProcessingTimeService) -> None:
        super().__init__("timers")
        self._timers = timers

    def service_stop(self) -> None:
        self._timers.shutdown()
