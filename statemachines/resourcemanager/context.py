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

if TYPE_CHECKING:
    from statemachines.resourcemanager.rmapp import RMApp
    from statemachines.resourcemanager.rmappattempt import RMAppAttempt
    from statemachines.resourcemanager.rmcontainer import RMContainer
    from statemachines.resourcemanager.rmnode import RMNode
    from statemachines.resourcemanager.scheduler import FifoScheduler
    from statemachines.resourcemanager.services import ApplicationMasterService

log = logging.getLogger(__name__)


class RMContext:
    """The dispatcher, the clock, and every entity by its id."""

    scheduler: FifoScheduler
    master_service: ApplicationMasterService

    def __init__(
        self,
        config: ResourceManagerConfig,
        dispatcher: AsyncDispatcher,
        timers: ProcessingTimeService,
        recorder: TransitionRecorder,
        cluster_timestamp: int,
    ) -> None:
        self.config = config
        self.post = dispatcher.event_handler.handle
        self.timers = timers
        self.recorder = recorder
        self.cluster_timestamp = cluster_timestamp
        self.apps: dict[str, RMApp] = {}
        self.attempts: dict[str, RMAppAttempt] = {}
        self.containers: dict[str, RMContainer] = {}  # those that have not ended
        self.nodes: dict[str, RMNode] = {}
        self.inactive_nodes: dict[str, RMNode] = {}

    def now_ms(self) -> int:
        return self.timers.current_processing_time()


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
        if entity is not None:
            entity.handle(event)
        else:
            log.debug("%r is for nobody: its entity is gone", event)
