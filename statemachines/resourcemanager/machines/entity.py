"""The base of the resource manager's entities, which handle events by a state machine.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from statemachines.factory import InvalidStateTransitionError, StateMachine, StateMachineFactory
from statemachines.recorder import TransitionRecorder

log: logging.Logger = logging.getLogger(__name__)


class EntityContext(Protocol):
    """The part of the context that every entity uses."""

    post: Callable[[Any], bool]
    now_ms: Callable[[], int]
    recorder: TransitionRecorder
    factories: Mapping[str, StateMachineFactory[Any, Any]]


C = TypeVar("C", bound=EntityContext)


class Entity(Generic[C]):
    """An object with a state machine. An event not accepted by its state is counted and logged."""

    machine: ClassVar[str]

    __slots__ = ("context", "entity", "state_machine")

    def __init__(self, context: C, entity: str) -> None:
        self.context: C = context
        self.entity: str = entity
        factory = context.factories[self.machine]
        self.state_machine: StateMachine[Any, Any] = factory.make(self, listener=context.recorder)

    @property
    def state(self) -> Any:
        return self.state_machine.current_state

    def handle(self, event: Any) -> None:
        try:
            self.state_machine.do_transition(event.type, event)
        except InvalidStateTransitionError:
            return  # the recorder has counted and logged it

    def __repr__(self) -> str:
        return f"<{self.machine} {self.entity} {self.state.name}>"


class Pending(NamedTuple):
    """What follows once the final state of an entity in FINAL_SAVING is stored."""

    target: Any
    """The state to enter."""
    then: Callable[[Any, Any], Any] | None
    """Called with the entity and that state, before it is entered."""


def finish_saving(entity: Any, event: Any) -> Any:
    """Hook of FINAL_SAVING for the store's answer: do what is pending, and enter the pending state."""
    pending: Pending | None = entity.pending
    assert pending is not None  # set on every arc to FINAL_SAVING
    entity.pending = None
    if pending.then is not None:
        pending.then(entity, pending.target)
    return pending.target


class EntityEventHandler:
    """Dispatches each event to its entity. An event for a forgotten entity is dropped."""

    def __init__(self, entities: dict[str, Any]) -> None:
        self._entities = entities

    def handle(self, event: Any) -> None:
        entity = self._entities.get(event.entity)
        if entity is None:
            log.debug("%r is dropped: its entity is gone", event)
            return
        try:  # Entity.handle inlined: most events pass through here
            entity.state_machine.do_transition(event.type, event)
        except InvalidStateTransitionError:
            return
