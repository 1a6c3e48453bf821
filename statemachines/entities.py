"""Entities by their ids: a handler that finds, makes and forgets them, and restores them from the journal.

It is what YARN's ApplicationEventDispatcher and its like are to the resource manager, for entities of any kind.

Threading: the events of one entity are handled one after another, as a dispatcher does it, or several partitions or
coroutines with the entity as their events' `lock_key`. So an entity's machine belongs to the thread of its events.
Different entities may be handled at the same time: the only thing that they share is a dict. It changes in single
steps, because its keys are texts, whose hash and comparison call no Python code. Whoever iterates takes a copy, in one
step too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any, Generic

from dispatcher.errors import DispatcherError, InvalidTypeError, InvalidValueError, JournalError
from dispatcher.journal import JournalWriter, PartitionedJournal
from statemachines.factory import OPERAND, S, StateMachine, StateMachineFactory
from statemachines.recorder import TransitionRecorder


class UnknownEntityError(DispatcherError):
    """Raised when no entity has the id of an event, and the event doesn't begin one."""

    def __init__(self, machine: str, entity: str, event: Any, begins: Collection[Enum]) -> None:
        self.machine = machine
        self.entity = entity
        self.event = event
        types = ", ".join(each.name for each in begins)
        super().__init__(
            f"{machine} {entity}: there is no such entity, and {event.type.name} does not begin one (only {types}). It "
            "has ended, or was never begun. Pass `on_unknown` to handle such events."
        )


class Entities(Generic[S, OPERAND]):
    """The live entities of one kind, by id. It's a handler, which you register for the events' Enum class.

    An event has `entity`, the id as text. The machine of that entity makes the transition for the event's type. If
    there's no such entity, an event in `begins` makes it. An entity is forgotten once it reaches one of the states in
    `ends`.

    `make`: called with an event's entity and None, or by `restore` with the state of a restored entity. It returns the
        operand, which needs the attributes `machine` (the factory's name) and `entity`. It doesn't need to keep the
        machine.
    `recorder`: counts the transitions and writes them to the `journal`, from where `restore` reads them. With a
        PartitionedJournal, the `lock_key` of the events is the entity.
    `begins`: event types to begin an entity with. By default, those accepted by the initial state.
    `on_unknown`: called with an event without an entity that can't begin one. By default, such an event fails.
    `snapshot_s`, `snapshot_transitions`: how often the journal gets a snapshot of the entities, in seconds, and in
        transitions. The latter grows to the number of entities in the last snapshot.

    Raises:
        ValueError: the factory has no name, `ends` has the initial state or a state of another Enum, `begins` has a
            type not accepted by the initial state, or the recorder writes to another journal.
    """

    def __init__(
        self,
        factory: StateMachineFactory[S, OPERAND],
        make: Callable[[str, S | None], OPERAND],
        *,
        recorder: TransitionRecorder,
        ends: Collection[S],
        journal: JournalWriter | PartitionedJournal | None = None,
        begins: Collection[Enum] | None = None,
        on_unknown: Callable[[Any], Any] | None = None,
        snapshot_transitions: int = 100_000,
        snapshot_s: float = 3600.0,
    ) -> None:
        self._factory = recorder.recorded(factory)  # never changes, like all fields that do not say otherwise
        self._make = make
        self._recorder = recorder
        self._journal = journal
        self._on_unknown = on_unknown
        self._snapshot_transitions = snapshot_transitions
        self._snapshot_s = snapshot_s
        accepted = [each.event for each in factory.transitions() if each.from_state is factory.initial_state]
        self._begins = tuple(each for each in accepted if begins is None or each in begins)
        self._ends = frozenset(state.name for state in ends)  # names: an Enum member's hash is Python code
        # By id. The thread of an entity's event adds and removes it, each with one call; any thread reads.
        self._machines: dict[str, StateMachine[S, OPERAND]] = {}
        self._check(factory, ends, begins or (), accepted)

    def _check(
        self,
        factory: StateMachineFactory[S, OPERAND],
        ends: Collection[S],
        begins: Collection[Enum],
        accepted: Collection[Enum],
    ) -> None:
        name, initial = factory.name, factory.initial_state
        if not name:
            raise InvalidValueError(
                "the factory has no name, by which the journal knows its machines; pass one to its constructor"
            )
        for state in ends:
            if type(state) is not type(initial) or state is initial:
                raise InvalidValueError(
                    f"{name}: ends has {state!r}; it takes states of {type(initial).__name__} but {initial.name}"
                )
        for event_type in begins:
            if event_type not in accepted:
                types = ", ".join(each.name for each in accepted)
                raise InvalidValueError(f"{name}: begins has {event_type!r}, but {initial.name} accepts only {types}")
        if self._journal is not None and self._recorder.journal is not self._journal:
            raise InvalidValueError(
                f"{name}: the recorder does not write to {self._journal.path}, so the journal would not have the "
                "transitions; pass TransitionRecorder(journal)"
            )

    def restore(self) -> int:
        """Make all entities in the journal that haven't ended, each in its last state, and return how many.

        Call this before the dispatcher starts, so the events redelivered by the journal find their entities. No hook
        runs, and no transition is made or counted. It reads the journal's newest snapshot and the transitions since. A
        PartitionedJournal must have been opened by its MultiDispatcher. This reads all its partitions, and writes the
        states to a file.

        Raises:
            JournalError: there's no journal, it can't be read, its dispatcher has started, you already called this, or
                an entity is in a state unknown to the factory. For a PartitionedJournal also: no MultiDispatcher has
                it, or the file is damaged or can't be written.
            ValueError: as `handle`, and whatever `make` raises.
        """
        factory, journal = self._factory, self._journal
        if journal is None:
            raise JournalError(
                f"{factory.name}: there is no journal to restore from; pass Entities(..., journal=journal)"
            )
        restored = journal.restore_states(
            factory.name,
            self._ends,
            snapshot_transitions=self._snapshot_transitions,
            snapshot_s=self._snapshot_s,
        )
        members = type(factory.initial_state).__members__  # with aliases: a state may be renamed
        for entity, name in restored.items():
            state = members.get(name)
            if state is None:
                raise JournalError(
                    f"{journal.path}: {factory.name} {entity} is in {name}, which is no longer one of the states of "
                    f"{type(factory.initial_state).__name__}. Keep {name} as an alias of the state that replaces it."
                )
            try:
                self._begin(entity, state)
            except Exception as error:
                error.add_note(f"while {factory.name} {entity} was restored in {state.name}")
                raise
        return len(restored)

    # -- the thread of the entity's events ---------------------------------------------------------------------------

    def handle(self, event: Any) -> Any:
        """Make the transition of the event's entity, and return its new state.

        For an unknown entity, this returns the result of `on_unknown`. In an `async def` handler, call it where you
        want the transition made. It also raises whatever `make` or the hook raises. If that was to begin an entity, it
        isn't kept.

        Raises:
            UnknownEntityError: there's no such entity, the event can't begin one, and there's no `on_unknown`.
            InvalidStateTransitionError: the entity's state doesn't accept the event.
            ValueError, TypeError: `make` returned an operand with another name, or the event's `entity` isn't text.
        """
        entity = event.entity
        machine = self._machines.get(entity)
        if machine is None:
            if event.type not in self._begins:
                return self._unknown(entity, event)
            machine = self._begin(entity, None)
            try:
                state = machine.do_transition(event.type, event)
            except BaseException:
                if machine.previous_state is None:  # nothing has happened, so the journal does not know it
                    self._forget(entity, machine.current_state)
                raise
        else:
            state = machine.do_transition(event.type, event)
        if state._name_ in self._ends:
            self._forget(entity, state)
        return state

    def _begin(self, entity: str, state: S | None) -> StateMachine[S, OPERAND]:
        name = self._factory.name
        if not isinstance(entity, str):
            raise InvalidTypeError(
                f"{name}: the event's entity is {entity!r}; the id of an entity is text, as in the journal"
            )
        operand = self._make(entity, state)
        found = getattr(operand, "machine", None), getattr(operand, "entity", None)
        if found != (name, entity):
            raise InvalidValueError(
                f"{name} {entity}: `make` returned an operand whose machine and entity are {found}; they are to be "
                f"{(name, entity)}, by which the journal finds it again"
            )
        machine = self._factory.make(operand, state, self._recorder)
        self._machines[entity] = machine
        return machine

    def _forget(self, entity: str, state: S) -> None:
        if self._machines.pop(entity, None) is not None:  # or an event that a hook handled has ended it
            self._recorder.forgotten(self._factory.name, state, entity)

    def _unknown(self, entity: str, event: Any) -> Any:
        if self._on_unknown is not None:
            return self._on_unknown(event)
        raise UnknownEntityError(self._factory.name, entity, event, self._begins)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def get(self, entity: str) -> OPERAND | None:
        """Return the operand of a live entity, as `make` returned it, or None if there's no such entity."""
        machine = self._machines.get(entity)
        return None if machine is None else machine.operand

    def state(self, entity: str) -> S | None:
        """Return the state of a live entity, or None if there's no such entity."""
        machine = self._machines.get(entity)
        return None if machine is None else machine.current_state

    def __contains__(self, entity: object) -> bool:
        return entity in self._machines

    def __len__(self) -> int:
        return len(self._machines)

    def __iter__(self) -> Iterator[str]:
        """The ids of the entities that are live now, in the order in which they were made."""
        return iter(list(self._machines))
