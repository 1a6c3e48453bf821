"""Machines of entities that keep more than a state: data, and timers for timeouts.

Threading: as Entities: an entity's items belong to the thread of its events.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic

from dispatcher.util.foreign import id_text
from statemachines.factory import OPERAND, S, StateMachine
from statemachines.keeping.data import EntityData
from statemachines.keeping.timeouts import EntityTimeouts


class Keeping:
    """What the entities of one kind keep with their states. It is the seal of their machines."""

    def __init__(self, data: EntityData | None, timeouts: EntityTimeouts | None) -> None:
        self.data = data  # never changes
        self.timeouts = timeouts  # never changes

    def seal(self, operand: Any, after: Enum, *, is_left: bool) -> None:
        """See Seal. Raises what a codec, the maker of an event or the dispatcher raises."""
        entity = id_text(operand.entity)
        if self.data is not None:
            self.data.seal(operand, entity)
        if self.timeouts is not None:  # the last step: nothing fails after it
            self.timeouts.seal(entity, after, is_left=is_left)

    def undo(self, operand: Any) -> None:
        """See Seal."""
        if self.data is not None:
            self.data.undo(operand, id_text(operand.entity))

    def commit(self, entity: str, event: Any) -> None:
        """A transition on the event has been made; None: it has failed."""
        if self.data is not None:
            self.data.commit(entity)
        if self.timeouts is not None:
            self.timeouts.commit(entity, event)

    def forget(self, entity: str) -> None:
        """The entity is no longer kept."""
        if self.data is not None:
            self.data.forget(entity)
        if self.timeouts is not None:
            self.timeouts.forget(entity)

    def is_late(self, entity: str, state: str | None, event: Any) -> bool:
        """Whether the event is a timeout that comes too late."""
        return self.timeouts is not None and self.timeouts.is_late(entity, state, event)


class KeptMachine(Generic[S, OPERAND]):
    """The machine of an entity, and what is kept with its state."""

    __slots__ = ("_entity", "_keeping", "_machine")

    def __init__(self, machine: StateMachine[S, OPERAND], entity: str, keeping: Keeping) -> None:
        self._machine = machine
        self._entity = entity
        self._keeping = keeping

    @property
    def current_state(self) -> S:
        return self._machine.current_state

    @property
    def previous_state(self) -> S | None:
        return self._machine.previous_state

    @property
    def operand(self) -> OPERAND | None:
        return self._machine.operand

    def do_transition(self, event_type: Enum, event: Any) -> S:
        """Make the transition, and keep what it changed. A timeout that comes too late is dropped."""
        keeping, entity, state = self._keeping, self._entity, self._machine.current_state
        if keeping.timeouts is not None:
            keeping.timeouts.look_up(entity, state._name_)
            if keeping.timeouts.is_late(entity, state._name_, event):
                return state
        try:
            state = self._machine.do_transition(event_type, event)
        except BaseException:
            keeping.commit(entity, None)  # the error may be of a listener, after the change
            raise
        keeping.commit(entity, event)
        return state
