"""The resource manager: a composite service around one AsyncDispatcher."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, CompositeService, JournalWriter, MetricsServer, register_metrics
from dispatcher.mailbox import MailboxTimeService, ManualClock, ProcessingTimeService, SystemProcessingTimeService
from dispatcher.service import Service
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.config import ResourceManagerConfig
from statemachines.resourcemanager.context import EntityEventHandler, RMContext
from statemachines.resourcemanager.events import (
    AMLauncherEventType,
    RMAppAttemptEventType,
    RMAppEventType,
    RMAppManagerEventType,
    RMContainerEventType,
    RMNodeEventType,
    RMStateStoreEventType,
    SchedulerEventType,
)
from statemachines.resourcemanager.scheduler import FifoScheduler
from statemachines.resourcemanager.services import (
    ApplicationMasterLauncher,
    ApplicationMasterService,
    ClientRMService,
    ResourceTrackerService,
    RMAppManager,
)
from statemachines.resourcemanager.simulation import SimulatedCluster, WorkloadRunner
from statemachines.resourcemanager.statestore import MemoryRMStateStore
from statemachines.resourcemanager.workload.model import Workload


class ResourceManager(CompositeService):
    """Applications, attempts, containers and nodes as state machines on one dispatcher; the nodes are simulated.

    Given a ManualClock it runs in virtual time: whenever nothing is queued, the handler thread jumps to the next timer,
    and calls `on_idle` when there is none. Without one it runs in real time.

    Any thread may start, stop and look at the counters. The services (`clients`, `masters`, `tracker`) and all entities
    belong to the handler thread: reach them by `dispatcher.mailbox_executor`.
    """

    def __init__(
        self,
        config: ResourceManagerConfig | None = None,
        *,
        clock: ManualClock | None = None,
        journal: JournalWriter | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = config or ResourceManagerConfig()
        super().__init__(self.settings.name)
        self.recorder = TransitionRecorder(journal)
        self._clock = clock
        self._on_idle = on_idle
        self.dispatcher = AsyncDispatcher(
            self.settings.dispatcher,
            name=self.settings.name,
            journal=journal,
            idle_action=self._jump if clock is not None else None,
            clock_ns=clock.current_time_ns if clock is not None else None,
        )
        time_service: ProcessingTimeService
        if clock is not None:
            time_service = clock
        else:
            time_service = system = SystemProcessingTimeService(f"{self.settings.name}-timers")
            self.add_service(_TimerThread(system))
        self.registry = CollectorRegistry()
        self.metrics_server: MetricsServer | None = None
        if self.settings.metrics.enabled:
            self.metrics_server = MetricsServer(self.settings.metrics, self.registry)
            self.add_service(self.metrics_server)
        self.add_service(self.dispatcher)

        timers = MailboxTimeService(time_service, self.dispatcher.mailbox_executor)
        self.context = RMContext(
            self.settings, self.dispatcher, timers, self.recorder, time_service.current_processing_time()
        )
        self.context.scheduler = FifoScheduler(self.context)
        self.context.master_service = ApplicationMasterService(self.context)
        self.clients = ClientRMService(self.context)
        self.masters = self.context.master_service
        self.tracker = ResourceTrackerService(self.context)
        self.cluster = SimulatedCluster(self.context, self.tracker)
        self._register_handlers()
        register_metrics(self.dispatcher, self.registry, [self.recorder])

    def bring(self, workload: Workload) -> None:
        """Have the handler thread register a workload's nodes, and run its applications when their time comes.

        Any thread; the workload's time 0 is when the handler thread gets to it.
        """
        runner = WorkloadRunner(self.context, self.clients, self.tracker, self.cluster, workload)
        self.dispatcher.mailbox_executor.execute(runner.start, "start of workload %s", workload.name)

    def _register_handlers(self) -> None:
        context, register = self.context, self.dispatcher.register
        store = MemoryRMStateStore(context)
        register(RMAppEventType, EntityEventHandler(context.apps))
        register(RMAppAttemptEventType, EntityEventHandler(context.attempts))
        register(RMContainerEventType, EntityEventHandler(context.containers))
        register(RMNodeEventType, EntityEventHandler(context.nodes))
        register(SchedulerEventType, context.scheduler)
        register(AMLauncherEventType, ApplicationMasterLauncher(context, self.cluster))
        register(RMStateStoreEventType, store)
        register(RMAppManagerEventType, RMAppManager(context, store))
        # The simulated daemons hear the same events, after the entities: that is their heartbeat's answer.
        register(RMAppAttemptEventType, self.cluster.on_attempt_event)
        register(RMNodeEventType, self.cluster.on_node_event)
        register(RMAppManagerEventType, self.cluster.on_app_completed)

    def _jump(self) -> bool:
        """Idle action in virtual time: go to the next timer."""
        assert self._clock is not None
        if self._clock.advance_to_next_timer():
            return True
        self._on_idle()
        return False


class _TimerThread(Service):
    """The life of the real clock's thread."""

    def __init__(self, timers: SystemProcessingTimeService) -> None:
        super().__init__("timers")
        self._timers = timers

    def service_stop(self) -> None:
        self._timers.shutdown()
