"""A journal's transitions replayed through the state machines alone: every entity's state at any moment.

Each entity gets a machine of its declared table, without hooks: nothing is scheduled, sent or stored. Where an arc has
several targets, it goes to the one that the journal tells. Where journal and table disagree, the journal is followed,
since that is where the daemon went, and the disagreement is kept.

Threading: no shared state; a call reads its rows in the thread that makes it.
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
"""Of each kind so many remarks are kept, the first ones; all are counted."""


class Moment(NamedTuple):
    """How far to replay, this included. With both limits, to the one that comes first; with none, to the end."""

    seq: int | None = None
    at: int | None = None
    """Unix ns in the clock of the run. Where that was set back, the first later row is the end all the same."""


END = Moment()


class EntityState(NamedTuple):
    """An entity at the moment."""

    machine: str
    entity: str
    state: str
    since_seq: int | None
    """Seq of the event that brought it into this state; None: it was in it when it was first heard of."""
    since_at: int | None
    """Unix ns of that event; None as above."""
    transitions: int
    """Made by its machine, those that stay in their state included."""
    machines: int
    """How many have had its id one after the other, the present one included."""


class RemarkKind(Enum):
    """What there is to say about a replay."""

    UNDER_WAY = "was under way before the journal begins"
    NEW_MACHINE = "came back as a new machine under the old id"
    REFUSED = "did not take an event"
    NO_TABLE = "is no declared machine: followed by the names of its states"
    DISORDER = "follows a later seq"
    GAP = "begins in a state in which the entity is not: transitions are missing before"
    UNDECLARED = "is not in the table"
    NOT_REFUSED = "was refused, which the table does not do"

    @property
    def is_disagreement(self) -> bool:
        """Whether journal and tables contradict each other; the others happen in a sound journal."""
        return self in _DISAGREEMENTS


_DISAGREEMENTS = frozenset({RemarkKind.DISORDER, RemarkKind.GAP, RemarkKind.UNDECLARED, RemarkKind.NOT_REFUSED})


class Remark(NamedTuple):
    """One of them: the row it is about, and a line of text."""

    kind: RemarkKind
    seq: int
    machine: str
    entity: str
    text: str


class Remarks(NamedTuple):
    """All of a kind."""

    total: int
    first: tuple[Remark, ...]
    """No more than `KEPT_REMARKS`."""


class TimeTravel:
    """Every entity of a journal at a moment."""

    def __init__(self, replay: _Replay, is_end: bool) -> None:
        self._kinds = replay.kinds
        self.seq = replay.seq
        """Of the last row that was applied; None: there is none up to the moment."""
        self.at = replay.at
        """Unix ns of that row."""
        self.is_end = is_end
        """There is no later row."""
        self.remarks: Mapping[RemarkKind, Remarks] = {
            kind: Remarks(replay.remark_counts[kind], tuple(replay.remarks[kind]))
            for kind in RemarkKind
            if replay.remark_counts[kind]
        }

    @property
    def disagreements(self) -> int:
        """How often the journal and the tables contradict each other."""
        return sum(remarks.total for kind, remarks in self.remarks.items() if kind.is_disagreement)

    def entities(self) -> Iterator[EntityState]:
        """All, in the order in which the journal first tells of them; by machine."""
        for machine, kind in self._kinds.items():
            for entity, course in kind.courses.items():
                yield _entity_state(machine, entity, course)

    def entity(self, machine: str, entity: str) -> EntityState | None:
        """One; None: the journal has not told of it up to the moment."""
        kind = self._kinds.get(machine)
        course = kind.courses.get(entity) if kind is not None else None
        return None if course is None else _entity_state(machine, entity, course)

    def counts(self) -> dict[str, dict[str, int]]:
        """How many entities are in each state, by machine; states in the order of their Enum, empty ones left out."""
        return {
            machine: kind.in_order(Counter(course.state for course in kind.courses.values()))
            for machine, kind in self._kinds.items()
        }

    def replaced(self) -> dict[str, dict[str, int]]:
        """As `counts`, of machines whose id has gone to a new one, each in its last state."""
        return {machine: kind.in_order(kind.replaced) for machine, kind in self._kinds.items() if kind.replaced}


def states_at(
    rows: Iterable[Row],
    moment: Moment = END,
    factories: Mapping[str, StateMachineFactory[Any, Any]] = FACTORIES,
    *,
    from_start: bool = True,
    wanted: Callable[[str, str], bool] | None = None,
) -> TimeTravel:
    """Where each entity is after all transitions up to and including `moment`; no row is read beyond the first later.

    Takes memory for each entity and none for each row.

    Args:
        rows: a journal's transitions with all columns of its table, in the order of seq.
        factories: the tables, by the machine's name.
        from_start: the rows are all from the journal's first event. If not, as in one whose old segments have been
            removed, an entity whose first row leaves another than the initial state is no disagreement.
        wanted: called with a row's machine and entity; what it is False for is left out. None: all are wanted.
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
        self.steps: dict[tuple[str, str, str], Observation] = {}  # by state, event and the state it leads to
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
        """A new machine; None: the machine has no such state."""
        member = self.states.get(state)
        return None if member is None else self._factory.make(None, member)


class _Course:
    """What is kept of an entity; there may be millions."""

    __slots__ = ("at", "machine", "machines", "seq", "state", "transitions")

    def __init__(self, state: str, machine: StateMachine[Any, Any] | None) -> None:
        self.state = state
        self.machine = machine  # in `state`; None: no table has that
        self.seq: int | None = None  # since when it is in the state
        self.at: int | None = None
        self.transitions = 0
        self.machines = 1


class _Kind:
    """All machines of a name."""

    def __init__(self, table: _Table | None) -> None:
        self.table = table
        self.courses: dict[str, _Course] = {}  # by entity
        self.replaced: Counter[str] = Counter()  # by last state

    def in_order(self, counts: Mapping[str, int]) -> dict[str, int]:
        states = sorted(counts) if self.table is None else [*self.table.states, *sorted(counts)]
        return {state: counts[state] for state in states if counts.get(state)}


class _Replay:
    """The replay up to now."""

    def __init__(self, factories: Mapping[str, StateMachineFactory[Any, Any]], from_start: bool) -> None:
        self._factories = factories
        self._from_start = from_start
        self.seq: int | None = None  # of the last row
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
        self._take(kind, course, row)
        course.transitions += 1
        if to_state != from_state:
            course.seq, course.at = seq, row["at"]

    def _take(self, kind: _Kind, course: _Course, row: Row) -> None:
        """The transition itself."""
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
            self._remark(RemarkKind.NO_TABLE, row, "no machine of that name is declared: followed by names, unchecked")
        kind = self.kinds[name] = _Kind(None if factory is None else _Table(factory))
        return kind

    def _first_course(self, kind: _Kind, row: Row) -> _Course:
        table, from_state = kind.table, row["from_state"]
        if table is None:
            return _Course(from_state, None)
        if from_state != table.initial:
            text = f"begins in {from_state}, where the initial state is {table.initial}"
            self._remark(RemarkKind.GAP if self._from_start else RemarkKind.UNDER_WAY, row, text)
        return _Course(from_state, table.machine_in(from_state))

    def _next_course(self, kind: _Kind, course: _Course, row: Row) -> _Course:
        """The row begins where the entity is not."""
        table, from_state = kind.table, row["from_state"]
        if table is None or from_state != table.initial:
            self._remark(RemarkKind.GAP, row, f"is in {course.state}, but {_step(row)} begins in {from_state}")
            course.state, course.machine = from_state, None if table is None else table.machine_in(from_state)
            course.seq = course.at = None
            return course
        self._remark(RemarkKind.NEW_MACHINE, row, f"a new machine has its id; the one before was in {course.state}")
        kind.replaced[course.state] += 1
        new = _Course(from_state, table.machine_in(from_state))
        new.machines = course.machines + 1
        return new

    def _check_refusal(self, kind: _Kind, row: Row) -> None:
        from_state, event_type = row["from_state"], row["event_type"]
        table = kind.table
        if row["to_state"] != from_state:
            text = f"{event_type} is told to be refused in {from_state}, and yet to lead to {row['to_state']}"
            self._remark(RemarkKind.NOT_REFUSED, row, text)
        elif table is not None and (from_state, event_type) in table.never_refused:
            text = f"{event_type} was refused in {from_state}, which takes it by the table"
            self._remark(RemarkKind.NOT_REFUSED, row, text)
        else:
            self._remark(RemarkKind.REFUSED, row, f"{from_state} does not take {event_type}")

    def _remark(self, kind: RemarkKind, row: Row, text: str) -> None:
        self.remark_counts[kind] += 1
        if len(self.remarks[kind]) < KEPT_REMARKS:
            self.remarks[kind].append(Remark(kind, row["seq"], row["machine"], row["entity"], text))


def _entity_state(machine: str, entity: str, course: _Course) -> EntityState:
    return EntityState(machine, entity, course.state, course.seq, course.at, course.transitions, course.machines)


def _step(row: Row) -> str:
    return f"{row['from_state']} -> {row['to_state']} on {row['event_type']}"
