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
from typing import TYPE_CHECKING, Any, Generic, Protocol

from dispatcher.errors import DispatcherError, InvalidTypeError, InvalidValueError, JournalError
from dispatcher.journal import JournalWriter, PartitionedJournal
from dispatcher.util.foreign import id_text
from dispatcher.util.functions import require_kind, require_methods, require_plain
from statemachines.factory import OPERAND, S, StateMachine, StateMachineFactory
from statemachines.keeping import EntityData, EntityTimeouts, Keeping, KeptMachine
from statemachines.recorder import TransitionRecorder

if TYPE_CHECKING:
    from dispatcher import Dispatcher


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


class HasEntity(Protocol):
    """An event of an entity: `type` is an Enum member and `entity` the id, as text or as an Enum member."""

    @property
    def type(self) -> Enum:
        """The member that chooses the transition."""

    @property
    def entity(self) -> str | Enum | None:
        """The id of the entity. None, as in a plain Event, is a TypeError when the event is handled."""


class Entities(Generic[S, OPERAND]):
    """The live entities of one kind, by id. It's a handler, which you register for the events' Enum class.

    An event has `entity`, the id as text, or an Enum member, whose `str()` is then the id (of a `str` Enum, its value).
    The machine of that entity makes the transition for the event's type. If there's no such entity, an event in
    `begins` makes it. An entity is forgotten once it reaches one of the states in `ends`.

    `make`: called with an event's entity and None, or by `restore` with the state of a restored entity. It returns the
        operand, which needs the attributes `machine` (the factory's name) and `entity`. It doesn't need to keep the
        machine.
    `recorder`: counts the transitions and writes them to the `journal`, from where `restore` reads them. By default,
        a `TransitionRecorder(journal)`. With a PartitionedJournal, the `lock_key` of the events is the entity.
    `begins`: event types to begin an entity with. By default, those accepted by the initial state.
    `on_unknown`: called with an event without an entity that can't begin one. By default, such an event fails.
    `data`: a dataclass or pydantic model. The operand's attribute `data`, set by `make`, is one, which hooks change. A
        transition that changed it writes it to the journal, and `restore` sets it. If a transition fails, the data is
        as before, too.
    `data_version`, `upgrade`: for data whose fields you've changed. `upgrade(version, fields)` gets those of an older
        version, as a dict from JSON, and returns those of the present one.
    `dispatcher`, `event`: for a factory with timeouts. Their timers are the dispatcher's, and `event(type, entity)`
        makes the event that one posts, such as the events' class. Register that class as the handler's `events`.
    `snapshot_s`, `snapshot_transitions`: how often the journal gets a snapshot of the entities, in seconds, and in
        transitions. The latter grows to the number of entities in the last snapshot.

    Raises:
        ValueError: the factory has no name, `ends` has the initial state or a state of another Enum, `begins` has a
            type not accepted by the initial state, the recorder writes to another journal, `data_version` is less than
            1, or a factory with timeouts has no `dispatcher` or no `event`.
        TypeError: `data` is neither a dataclass nor a model, or has a field that JSON can't give back.
    """

    def __init__(
        self,
        factory: StateMachineFactory[S, OPERAND],
        make: Callable[[str, S | None], OPERAND],
        *,
        recorder: TransitionRecorder | None = None,
        ends: Collection[S] = (),
        journal: JournalWriter | PartitionedJournal | None = None,
        begins: Collection[Enum] | None = None,
        on_unknown: Callable[[Any], Any] | None = None,
        data: type[Any] | None = None,
        data_version: int = 1,
        upgrade: Callable[[int, dict[str, Any]], Any] | None = None,
        dispatcher: Dispatcher | None = None,
        event: Callable[[Any, str], HasEntity] | None = None,
        snapshot_transitions: int = 100_000,
        snapshot_s: float = 3600.0,
    ) -> None:
        recorder = TransitionRecorder(journal) if recorder is None else recorder
        require_kind(recorder, "recorder", TransitionRecorder)
        require_kind(factory, "factory", StateMachineFactory)
        make = require_plain(make, "make", "returns the operand of an entity", is_hot=True)
        require_methods(ends, "ends", "the states that end an entity", "__iter__")
        self._recorder = recorder
        self._make = make  # never changes, like all fields that do not say otherwise
        self._journal = journal
        self._on_unknown = on_unknown
        self._snapshot_transitions = snapshot_transitions
        self._snapshot_s = snapshot_s
        accepted = [each.event for each in factory.transitions() if each.from_state is factory.initial_state]
        self._begins = tuple(each for each in accepted if begins is None or each in begins)
        self._ends = frozenset(state.name for state in ends)  # names: an Enum member's hash is Python code
        # By id. The thread of an entity's event adds and removes it, each with one call; any thread reads.
        self._machines: dict[str, StateMachine[S, OPERAND] | KeptMachine[S, OPERAND]] = {}
        self._check(factory, ends, begins or (), accepted)
        kept = None if data is None else EntityData(factory.name, data, data_version, upgrade)
        timeouts = _timeouts_of(factory, dispatcher, event)
        self._keeping = None if kept is None and timeouts is None else Keeping(kept, timeouts)
        if self._keeping is None:
            self._factory = recorder.recorded(factory)
        else:
            recorder.keep(factory, kept)
            self._factory = factory.sealed_by(self._keeping)

    @property
    def recorder(self) -> TransitionRecorder:
        """The recorder, a source of metrics for `register_metrics`."""
        return self._recorder

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

        With `data`, each has its last data. With timeouts, each has what was left of them.

        Call this before the dispatcher starts, so the events redelivered by the journal find their entities. No hook
        runs, and no transition is made or counted. It reads the journal's newest snapshot and the transitions since. A
        PartitionedJournal must have been opened by its MultiDispatcher. This reads all its partitions, and writes the
        states to a file.

        Raises:
            JournalError: there's no journal, it can't be read, its dispatcher has started, you already called this, or
                an entity is in a state unknown to the factory. For a PartitionedJournal also: no MultiDispatcher has
                it, or the file is damaged or can't be written.
            EntityDataError: an entity's data doesn't fit `data`, or `upgrade` raised.
            ValueError: as `handle`.
            Exception: `make` raised it.
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
                self._begin(entity, state, restored.data.get(entity))
            except Exception as error:
                error.add_note(f"while {factory.name} {entity} was restored in {state.name}")
                raise
        if self._keeping is not None and self._keeping.timeouts is not None:
            names = {entity: machine.current_state._name_ for entity, machine in self._machines.items()}
            self._keeping.timeouts.restore(names)
        return len(restored)

    # -- the thread of the entity's events ---------------------------------------------------------------------------

    def handle(self, event: HasEntity) -> S:
        """Make the transition of the event's entity, and return its new state.

        For an unknown entity, this returns the result of `on_unknown`. In an `async def` handler, call it where you
        want the transition made. Errors of `make` and of hooks are raised as they are. If the first transition of an
        entity fails, the entity isn't kept.

        An event of a timeout whose state was left before it came is dropped. Then this returns the entity's state, or
        the initial one if the entity has ended.

        Raises:
            UnknownEntityError: there's no such entity, the event can't begin one, and there's no `on_unknown`.
            InvalidStateTransitionError: the entity's state doesn't accept the event.
            EntityDataError: the entity's data can't be kept in the journal. Its state and data are as before.
            ValueError, TypeError: `make` returned an operand with another name, or the event's `entity` isn't text.
        """
        entity = event.entity
        if type(entity) is not str:
            entity = self._id(entity)
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

    def _id(self, entity: object) -> str:
        if not isinstance(entity, (str, Enum)):
            raise InvalidTypeError(
                f"{self._factory.name}: the event's entity is {entity!r}; the id of an entity is text, as in the "
                "journal, or an Enum member"
            )
        return id_text(entity)

    def _begin(
        self, entity: str, state: S | None, data: str | None = None
    ) -> StateMachine[S, OPERAND] | KeptMachine[S, OPERAND]:
        name = self._factory.name
        operand = self._make(entity, state)
        found = getattr(operand, "machine", None), getattr(operand, "entity", None)
        if found != (name, entity):
            raise InvalidValueError(
                f"{name} {entity}: `make` returned an operand whose machine and entity are {found}; they are to be "
                f"{(name, entity)}, by which the journal finds it again"
            )
        keeping = self._keeping
        if keeping is not None and keeping.data is not None:
            keeping.data.begin(operand, entity, data)
        machine: StateMachine[S, OPERAND] | KeptMachine[S, OPERAND]
        machine = self._factory.make(operand, state, self._recorder)
        if keeping is not None:
            machine = KeptMachine(machine, entity, keeping)
        self._machines[entity] = machine
        return machine

    def _forget(self, entity: str, state: S) -> None:
        if self._machines.pop(entity, None) is not None:  # or an event that a hook handled has ended it
            if self._keeping is not None:
                self._keeping.forget(entity)
            self._recorder.forgotten(self._factory.name, state, entity)

    def _unknown(self, entity: str, event: Any) -> S:
        if self._keeping is not None and self._keeping.is_late(entity, None, event):
            return self._factory.initial_state
        if self._on_unknown is not None:
            found: S = self._on_unknown(event)
            return found
        raise UnknownEntityError(self._factory.name, entity, event, self._begins)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def get(self, entity: str | Enum) -> OPERAND | None:
        """Return the operand of a live entity, as `make` returned it, or None if there's no such entity."""
        machine = self._machines.get(id_text(entity))
        return None if machine is None else machine.operand

    def state(self, entity: str | Enum) -> S | None:
        """Return the state of a live entity, or None if there's no such entity."""
        machine = self._machines.get(id_text(entity))
        return None if machine is None else machine.current_state

    def __contains__(self, entity: object) -> bool:
        return isinstance(entity, (str, Enum)) and id_text(entity) in self._machines

    def __len__(self) -> int:
        return len(self._machines)

    def __iter__(self) -> Iterator[str]:
        """The ids of the entities that are live now, in the order in which they were made."""
        return iter(list(self._machines))


def _timeouts_of(
    factory: StateMachineFactory[Any, Any], dispatcher: Dispatcher | None, event: Callable[[Any, str], HasEntity] | None
) -> EntityTimeouts | None:
    timeouts = list(factory.timeouts())
    if not timeouts:
        return None
    if dispatcher is None or event is None:
        raise InvalidValueError(
            f"{factory.name}: {timeouts[0].state.name} has a timeout; pass the `dispatcher` whose timers it takes, and "
            "`event`, which makes the event of a type and an entity"
        )
    return EntityTimeouts(factory.name, timeouts, factory.transitions(), dispatcher, event)
