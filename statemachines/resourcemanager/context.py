"""What the parts of a resource manager share, after YARN's RMContext.

All of it belongs to the dispatcher's handler thread (invariant 1); who is elsewhere sends an event or a mail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dispatcher import AsyncDispatcher
from dispatcher.mailbox import ProcessingTimeService
from statemachines.factory import InvalidStateTransitionError, StateMachine
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.config import ResourceManagerConfig
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.services.liveliness import DeadlineMonitor, LivelinessMonitor

if TYPE_CHECKING:
    from statemachines.resourcemanager.machines.rmapp import RMApp
    from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
    from statemachines.resourcemanager.machines.rmcontainer import RMContainer
    from statemachines.resourcemanager.machines.rmnode import RMNode
    from statemachines.resourcemanager.scheduler.interface import ResourceScheduler
    from statemachines.resourcemanager.services.application_master_service import ApplicationMasterService

log = logging.getLogger(__name__)


class RMContext:
    """The dispatcher, the clock, every entity by its id, and the services that entities call directly."""

    scheduler: ResourceScheduler
    master_service: ApplicationMasterService

    def __init__(
        self,
        config: ResourceManagerConfig,
        dispatcher: AsyncDispatcher,
        timers: ProcessingTimeService,
        recorder: TransitionRecorder,
        cluster_timestamp: int,
        *,
        now_ms: Callable[[], int] | None = None,
        steady_ms: Callable[[], int] | None = None,
        expires: bool = True,
    ) -> None:
        """`now_ms`: what `timers` would tell, if there is a shorter way to it.

        `steady_ms`: a clock that nobody sets, for what must report in time; None: the same as the other.
        Without `expires`, nodes and masters are never lost by silence: they report when there is news only.
        """
        self.config = config
        self.post = dispatcher.event_handler.handle
        self.timers = timers
        self.now_ms = now_ms or timers.current_processing_time
        self._steady_ms = steady_ms or self.now_ms
        self.recorder = recorder
        self.cluster_timestamp = cluster_timestamp
        self.epoch = 0  # restarts of the resource manager; set before the handler thread starts
        self.call: Callable[[Callable[[], Any]], Any] = lambda function: function()
        self.execute: Callable[[Callable[[], Any]], Any] = lambda function: function()  # as `call`, without waiting
        self.on_handler_thread: Callable[[], bool] = lambda: True
        self.apps: dict[str, RMApp] = {}
        self.attempts: dict[str, RMAppAttempt] = {}
        self.containers: dict[str, RMContainer] = {}  # those that have not ended
        self.nodes: dict[str, RMNode] = {}
        self.inactive_nodes: dict[str, RMNode] = {}
        am_ms = round(config.am_expiry_interval_s * 1000) if expires else None
        nm_ms = round(config.nm_expiry_interval_s * 1000) if expires else None
        self.am_liveliness_monitor = self._monitor("AMLivelinessMonitor", am_ms, self._expire_attempt)
        self.am_finishing_monitor = self._monitor("AMFinishingMonitor", am_ms, self._expire_attempt)
        self.nm_liveliness_monitor = self._monitor("NMLivelinessMonitor", nm_ms, self._expire_node)
        self.container_allocation_expirer = self._monitor(
            "ContainerAllocationExpirer", round(config.container_allocation_expiry_s * 1000), self._expire_container
        )
        self.app_lifetime_monitor = DeadlineMonitor("RMAppLifetimeMonitor", self.now_ms, self._end_lifetime)

    @property
    def monitors(self) -> tuple[LivelinessMonitor | DeadlineMonitor, ...]:
        """All that have deadlines."""
        liveliness = (
            self.am_liveliness_monitor,
            self.am_finishing_monitor,
            self.nm_liveliness_monitor,
            self.container_allocation_expirer,
        )
        return (*(each for each in liveliness if each.interval_ms is not None), self.app_lifetime_monitor)

    def _monitor(self, name: str, interval_ms: int | None, expire: Callable[[str], None]) -> LivelinessMonitor:
        return LivelinessMonitor(name, interval_ms, self._steady_ms, expire)

    def _expire_attempt(self, attempt_id: str) -> None:
        self.post(
            RMAppAttemptEvent(RMAppAttemptEventType.EXPIRE, attempt_id, "its master has been silent for too long")
        )

    def _expire_node(self, node_id: str) -> None:
        self.post(RMNodeEvent(RMNodeEventType.EXPIRE, node_id))

    def _expire_container(self, container_id: str) -> None:
        self.post(SchedulerEvent(SchedulerEventType.CONTAINER_EXPIRED, container_id))

    def _end_lifetime(self, app_id: str) -> None:
        self.post(RMAppEvent(RMAppEventType.KILL, app_id, "killed: its lifetime is over"))


class Entity:
    """Something with a state machine. Takes its events; one that its state does not take is counted and logged."""

    machine: ClassVar[str]

    __slots__ = ("context", "entity", "state_machine")

    def __init__(self, context: RMContext, entity: str, state_machine: StateMachine[Any, Any]) -> None:
        self.context = context
        self.entity = entity
        self.state_machine = state_machine
        context.recorder.created(self.machine, state_machine.current_state)

    @property
    def state(self) -> Any:
        return self.state_machine.current_state

    def handle(self, event: Any) -> None:
        try:
            self.state_machine.do_transition(event.type, event)
        except InvalidStateTransitionError as error:
            self.context.recorder.invalid(self, error)

    def __repr__(self) -> str:
        return f"<{self.machine} {self.entity} {self.state.name}>"


class Pending(NamedTuple):
    """What follows once the final state of an entity in FINAL_SAVING is stored."""

    target: Any
    """The state to go to."""
    then: Callable[[Any, Any], Any] | None
    """Hook that was put off until now, with the event that caused it."""
    event: Any


def finish_saving(entity: Any, event: Any) -> Any:
    """Hook of FINAL_SAVING for the store's answer: do what is `pending`, and go there."""
    pending: Pending | None = entity.pending
    assert pending is not None  # set on every arc to FINAL_SAVING
    entity.pending = None
    if pending.then is not None:
        pending.then(entity, pending.event)
    return pending.target


class EntityEventHandler:
    """Hands each event to the entity it is for. One that is gone (ended, and forgotten) needs it no more."""

    def __init__(self, entities: dict[str, Any]) -> None:
        self._entities = entities

    def handle(self, event: Any) -> None:
        entity = self._entities.get(event.entity)
        if entity is None:
            log.debug("%r is for nobody: its entity is gone", event)
            return
        try:  # as Entity.handle, without the call: most events of a resource manager come along here
            entity.state_machine.do_transition(event.type, event)
        except InvalidStateTransitionError as error:
            entity.context.recorder.invalid(entity, error)
