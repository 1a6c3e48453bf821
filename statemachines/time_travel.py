"""Time travel: replays a journal's transitions through the state machines to find every entity's state at a moment.

Each entity gets a machine with its declared table but without hooks: nothing is scheduled, sent or stored. An arc with
several targets takes the target recorded in the journal. Where journal and table disagree, the replay follows the
journal, because that is where the daemon went, and records the disagreement.

Threading: no shared state; a call reads its rows on the calling thread.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from statemachines.factory import StateMachine, StateMachineFactory
from statemachines.observation import Observation, as_observed
from statemachines.registry import FACTORIES

Row = Mapping[str, Any]

KEPT_REMARKS = 1000
"""Remarks kept of each kind, the first ones; all are counted."""


class Moment(NamedTuple):
    """Inclusive end of a replay: the earlier of both limits, or the journal's end if neither is given."""

    seq: int | None = None
    at: int | None = None
    """Unix ns in the clock of the run. The replay ends at the first later row, even if the clock was set back after."""


END = Moment()


class EntityState(NamedTuple):
    """An entity at the moment."""

    machine: str
    entity: str
    state: str
    since_seq: int | None
    """Seq of the event that led to this state; None if the journal's first row of the entity starts in it."""
    since_at: int | None
    """Unix ns of that event; None as above."""
    transitions: int
    """Transitions of its machine, including self-transitions."""
    machines: int
    """Machines that have had this id in succession, including the current one."""


class RemarkKind(Enum):
    UNDER_WAY = "was under way before the journal begins"
    NEW_MACHINE = "came back as a new machine under the old id"
    REFUSED = "did not take an event"
    NO_TABLE = "is not a declared machine: followed by the names of its states"
    DISORDER = "follows a later seq"
    GAP = "begins in a state in which the entity is not: earlier transitions are missing"
    UNDECLARED = "is not in the table"
    NOT_REFUSED = "was refused, though the table allows it"

    @property
    def is_disagreement(self) -> bool:
        """Whether journal and tables contradict each other; the other kinds also occur in a sound journal."""
        return self in _DISAGREEMENTS


_DISAGREEMENTS = frozenset({RemarkKind.DISORDER, RemarkKind.GAP, RemarkKind.UNDECLARED, RemarkKind.NOT_REFUSED})


class Remark(NamedTuple):
    """The row that it is about, and a line of text."""

    kind: RemarkKind
    seq: int
    machine: str
    entity: str
    text: str


class Remarks(NamedTuple):
    """All remarks of a kind."""

    total: int
    first: tuple[Remark, ...]
    """At most `KEPT_REMARKS`."""


class TimeTravel:
    """Every entity of a journal at a moment."""

    def __init__(self, replay: _Replay, is_end: bool) -> None:
        self._kinds = replay.kinds
        self.seq = replay.seq
        """Seq of the last applied row; None if the moment precedes every row."""
        self.at = replay.at
        """Unix ns of that row."""
        self.is_end = is_end
        """Whether the journal has no later row."""
        self.remarks: Mapping[RemarkKind, Remarks] = {
            kind: Remarks(replay.remark_counts[kind], tuple(replay.remarks[kind]))
            for kind in RemarkKind
            if replay.remark_counts[kind]
        }

    @property
    def disagreements(self) -> int:
        """Number of contradictions between the journal and the tables."""
        return sum(remarks.total for kind, remarks in self.remarks.items() if kind.is_disagreement)

    def entities(self) -> Iterator[EntityState]:
        """All entities by machine, each in the order of its first row."""
        for machine, kind in self._kinds.items():
            for entity, course in kind.courses.items():
                yield _entity_state(machine, entity, course)

    def entity(self, machine: str, entity: str) -> EntityState | None:
        """One entity; None if it has no row up to the moment."""
        kind = self._kinds.get(machine)
        course = kind.courses.get(entity) if kind is not None else None
        return None if course is None else _entity_state(machine, entity, course)

    def counts(self) -> dict[str, dict[str, int]]:
        """Entities in each state, by machine; states in the order of their Enum, without empty ones."""
        return {
            machine: kind.in_order(Counter(course.state for course in kind.courses.values()))
            for machine, kind in self._kinds.items()
        }

    def replaced(self) -> dict[str, dict[str, int]]:
        """As `counts`, for machines replaced by a new one with the same id, each in its last state."""
        return {machine: kind.in_order(kind.replaced) for machine, kind in self._kinds.items() if kind.replaced}


def states_at(
    rows: Iterable[Row],
    moment: Moment = END,
    factories: Mapping[str, StateMachineFactory[Any, Any]] = FACTORIES,
    *,
    from_start: bool = True,
    wanted: Callable[[str, str], bool] | None = None,
) -> TimeTravel:
    """Each entity's state after all transitions up to and including `moment`; stops reading at the first later row.

    Memory grows with the entities, not with the rows.

    Args:
        rows: a journal's transitions with all columns of its table, ordered by seq.
        factories: the tables, by the machine's name.
        from_start: whether the rows begin with the journal's first event. If not, because old segments were removed, an
            entity whose first row does not start in the initial state is not a disagreement.
        wanted: filter called with a row's machine and entity; None keeps all rows.
    """
    last_seq = sys.maxsize if moment.seq is None else moment.seq
    last_at = sys.maxsize if moment.at is None else moment.at
    replay = _Replay(factories, from_start)
    for row in rows:
        if row["seq"] > last_seq or row["at"] > last_at:
            return TimeTravel(replay, is_end=False)
        if wanted is None or wanted(row["machine"], row["entity"]):
            replay.apply(row)
    return TimeTravel(replay, is_end=True)


class _Table:
    """A factory's table without its hooks, by names."""

    __slots__ = ("_factory", "initial", "never_refused", "states", "steps")

    def __init__(self, factory: StateMachineFactory[Any, Any]) -> None:
        bare: StateMachineFactory[Any, Any] = StateMachineFactory(factory.initial_state, factory.name)
        self.initial: str = factory.initial_state.name
        self.states: dict[str, Enum] = {state.name: state for state in type(factory.initial_state)}
        self.steps: dict[tuple[str, str, str], Observation] = {}  # by state, event and post state
        self.never_refused: set[tuple[str, str]] = set()  # a hook may refuse by choosing an undeclared state
        for from_state, event, to_states, arc in factory.transitions():
            if arc == "single":
                bare = bare.add_transition(from_state, to_states[0], event)
                self.never_refused.add((from_state.name, event.name))
            else:
                bare = bare.add_transition(from_state, to_states, event, as_observed)
            for to_state in to_states:
                self.steps[from_state.name, event.name, to_state.name] = Observation(event, to_state)
        self._factory = bare.install_topology()

    def machine_in(self, state: str) -> StateMachine[Any, Any] | None:
        """A new machine; None if the table lacks the state."""
        member = self.states.get(state)
        return None if member is None else self._factory.make(None, member)


class _Course:
    """What the replay keeps of an entity; there may be millions."""

    __slots__ = ("at", "machine", "machines", "seq", "state", "transitions")

    def __init__(self, state: str, machine: StateMachine[Any, Any] | None) -> None:
        self.state = state
        self.machine = machine  # in `state`; None if no table has that state
        self.seq: int | None = None  # of the event that led to the state
        self.at: int | None = None
        self.transitions = 0
        self.machines = 1


class _Kind:
    """The entities of all machines with one name."""

    def __init__(self, table: _Table | None) -> None:
        self.table = table
        self.courses: dict[str, _Course] = {}  # by entity
        self.replaced: Counter[str] = Counter()  # by last state

    def in_order(self, counts: Mapping[str, int]) -> dict[str, int]:
        states = sorted(counts) if self.table is None else [*self.table.states, *sorted(counts)]
        return {state: counts[state] for state in states if counts.get(state)}


class _Replay:
    def __init__(self, factories: Mapping[str, StateMachineFactory[Any, Any]], from_start: bool) -> None:
        self._factories = factories
        self._from_start = from_start
        self.seq: int | None = None  # of the last applied row
        self.at: int | None = None
        self.kinds: dict[str, _Kind] = {}  # by the machine's name
        self.remarks: dict[RemarkKind, list[Remark]] = {kind: [] for kind in RemarkKind}
        self.remark_counts: Counter[RemarkKind] = Counter()

    def apply(self, row: Row) -> None:
        seq, entity, from_state, to_state = row["seq"], row["entity"], row["from_state"], row["to_state"]
        if self.seq is not None and seq < self.seq:
            self._remark(RemarkKind.DISORDER, row, f"this row follows one of seq {self.seq}")
        self.seq, self.at = seq, row["at"]
        kind = self.kinds.get(row["machine"]) or self._new_kind(row)
        course = kind.courses.get(entity)
        if course is None:
            course = kind.courses[entity] = self._first_course(kind, row)
        elif course.state != from_state:
            course = kind.courses[entity] = self._next_course(kind, course, row)
        if not row["valid"]:
            self._check_refusal(kind, row)
            return
        self._transition(kind, course, row)
        course.transitions += 1
        if to_state != from_state:
            course.seq, course.at = seq, row["at"]

    def _transition(self, kind: _Kind, course: _Course, row: Row) -> None:
        table, machine, to_state = kind.table, course.machine, row["to_state"]
        if table is None:
            course.state = to_state
            return
        step = table.steps.get((course.state, row["event_type"], to_state))
        if step is not None and machine is not None:
            course.state = machine.do_transition(step.type, step)._name_
            return
        self._remark(RemarkKind.UNDECLARED, row, f"the table has no {_step(row)}")
        course.state, course.machine = to_state, table.machine_in(to_state)

    def _new_kind(self, row: Row) -> _Kind:
        name = row["machine"]
        factory = self._factories.get(name)
        if factory is None:
            self._remark(RemarkKind.NO_TABLE, row, "no machine has this name: its states are followed unchecked")
        kind = self.kinds[name] = _Kind(None if factory is None else _Table(factory))
        return kind

    def _first_course(self, kind: _Kind, row: Row) -> _Course:
        table, from_state = kind.table, row["from_state"]
        if table is None:
            return _Course(from_state, None)
        if from_state != table.initial:
            text = f"begins in {from_state}, but the initial state is {table.initial}"
            self._remark(RemarkKind.GAP if self._from_start else RemarkKind.UNDER_WAY, row, text)
        return _Course(from_state, table.machine_in(from_state))

    def _next_course(self, kind: _Kind, course: _Course, row: Row) -> _Course:
        """The course for a row that does not start in the entity's state."""
        table, from_state = kind.table, row["from_state"]
        if table is None or from_state != table.initial:
            self._remark(RemarkKind.GAP, row, f"is in {course.state}, but {_step(row)} begins in {from_state}")
            course.state, course.machine = from_state, None if table is None else table.machine_in(from_state)
            course.seq = course.at = None
            return course
        self._remark(RemarkKind.NEW_MACHINE, row, f"a new machine has its id; the previous one was in {course.state}")
        kind.replaced[course.state] += 1
        new = _Course(from_state, table.machine_in(from_state))
        new.machines = course.machines + 1
        return new

    def _check_refusal(self, kind: _Kind, row: Row) -> None:
        from_state, event_type = row["from_state"], row["event_type"]
        table = kind.table
        if row["to_state"] != from_state:
            text = f"{event_type} is marked as refused in {from_state}, yet leads to {row['to_state']}"
            self._remark(RemarkKind.NOT_REFUSED, row, text)
        elif table is not None and (from_state, event_type) in table.never_refused:
            text = f"{event_type} was refused in {from_state}, whose table accepts it"
            self._remark(RemarkKind.NOT_REFUSED, row, text)
        else:
            self._remark(RemarkKind.REFUSED, row, f"{from_state} does not accept {event_type}")

    def _remark(self, kind: RemarkKind, row: Row, text: str) -> None:
        self.remark_counts[kind] += 1
        if len(self.remarks[kind]) < KEPT_REMARKS:
            self.remarks[kind].append(Remark(kind, row["seq"], row["machine"], row["entity"], text))


def _entity_state(machine: str, entity: str, course: _Course) -> EntityState:
    return EntityState(machine, entity, course.state, course.seq, course.at, course.transitions, course.machines)


def _step(row: Row) -> str:
    return f"{row['from_state']} -> {row['to_state']} on {row['event_type']}"
