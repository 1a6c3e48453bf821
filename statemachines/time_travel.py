"""Time travel: replays a journal's transitions through the machines' tables to find every entity's state at a moment.

No hook runs: nothing is scheduled, sent or stored. Where journal and table disagree, the replay follows the journal,
because that is where the daemon went, and records the disagreement.

Threading: no shared state; a call reads its rows on the calling thread.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from dispatcher.journal.format.entity_data import fields_in
from statemachines.factory import StateMachineFactory
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
    data: str | None = None
    """The last data that the rows have of it, as a JSON object."""


class RemarkKind(Enum):
    UNDER_WAY = "existed before the journal begins"
    NEW_MACHINE = "came back as a new machine under the old id"
    REFUSED = "did not take an event"
    NO_TABLE = "is not a declared machine: followed by the names of its states"
    DISORDER = "follows a later seq"
    GAP = "begins in a state in which the entity is not: earlier transitions are missing"
    UNDECLARED = "is not in the table"
    NOT_REFUSED = "was rejected, though the table allows it"

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
        rows: a journal's transitions with all columns of its table, ordered by seq; of a partitioned journal, by time.
        factories: the tables, by the machine's name.
        from_start: whether the rows begin with the journal's first event. If not, because old segments were removed, an
            entity whose first row does not start in the initial state is not a disagreement.
        wanted: filter called with a row's machine and entity; None keeps all rows.
    """
    last_seq = sys.maxsize if moment.seq is None else moment.seq
    last_at = sys.maxsize if moment.at is None else moment.at
    travel = TimeTravel(factories, from_start)
    for row in rows:
        if row["seq"] > last_seq or row["at"] > last_at:
            travel.is_end = False
            break
        if wanted is None or wanted(row["machine"], row["entity"]):
            travel.apply(row)
    return travel


class _Course:
    """What the replay keeps of an entity; there may be millions."""

    __slots__ = ("at", "data", "machines", "seq", "state", "transitions")

    def __init__(self, state: str, machines: int = 1) -> None:
        self.state = state
        self.seq: int | None = None  # of the event that led to the state
        self.at: int | None = None
        self.transitions = 0
        self.machines = machines
        self.data: str | None = None


class _MachineEntities:
    """The entities of all machines with one name, and their table by names; empty if `factory` is None."""

    def __init__(self, factory: StateMachineFactory[Any, Any] | None) -> None:
        self.initial: str | None = None
        self.states: list[str] = []
        self.steps: set[tuple[str, str, str]] = set()  # state, event and post state
        self.never_refused: set[tuple[str, str]] = set()  # a hook may refuse by choosing an undeclared state
        self.courses: dict[str, _Course] = {}  # by entity
        self.replaced: Counter[str] = Counter()  # by last state
        if factory is not None:
            self.initial = factory.initial_state.name
            self.states = [state.name for state in type(factory.initial_state)]
            may_refuse: set[tuple[str, str]] = set()
            for row in factory.transitions():
                pair = row.from_state.name, row.event.name
                self.steps.update((*pair, to_state.name) for to_state in row.to_states)
                if row.arc == "multiple":
                    may_refuse.add(pair)
                elif not row.guard:
                    self.never_refused.add(pair)
            self.never_refused -= may_refuse

    def in_order(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {state: counts[state] for state in [*self.states, *sorted(counts)] if counts.get(state)}


class TimeTravel:
    """Every entity of a journal at a moment."""

    def __init__(self, factories: Mapping[str, StateMachineFactory[Any, Any]], from_start: bool) -> None:
        self._factories = factories
        self._from_start = from_start
        self._kinds: dict[str, _MachineEntities] = {}  # by the machine's name
        self.seq: int | None = None
        """Seq of the last applied row; None if the moment precedes every row."""
        self.at: int | None = None
        """Unix ns of that row."""
        self.is_end = True
        """Whether the journal has no later row."""
        self._seqs: dict[int | None, int] = {}  # of the last applied row of each partition
        self._remarks: dict[RemarkKind, list[Remark]] = {kind: [] for kind in RemarkKind}  # the first ones
        self._remark_counts: Counter[RemarkKind] = Counter()

    @property
    def remarks(self) -> Mapping[RemarkKind, Remarks]:
        """By kind, without kinds that have none."""
        counts = self._remark_counts
        return {kind: Remarks(counts[kind], tuple(self._remarks[kind])) for kind in RemarkKind if counts[kind]}

    @property
    def disagreements(self) -> int:
        """Number of contradictions between the journal and the tables."""
        return sum(count for kind, count in self._remark_counts.items() if kind.is_disagreement)

    def entities(self) -> Iterator[EntityState]:
        """All entities by machine, each in the order of its first row."""
        for machine, kind in self._kinds.items():
            for entity, course in kind.courses.items():
                data = None if course.data is None else fields_in(course.data)
                about = course.state, course.seq, course.at, course.transitions, course.machines, data
                yield EntityState(machine, entity, *about)

    def counts(self) -> dict[str, dict[str, int]]:
        """Entities in each state, by machine; states in the order of their Enum, without empty ones."""
        return {
            machine: kind.in_order(Counter(course.state for course in kind.courses.values()))
            for machine, kind in self._kinds.items()
        }

    def replaced(self) -> dict[str, dict[str, int]]:
        """Machines replaced by a new one with the same id, counted by machine and their last state."""
        return {machine: kind.in_order(kind.replaced) for machine, kind in self._kinds.items() if kind.replaced}

    def apply(self, row: Row) -> None:
        """Follow the next row; for `states_at`."""
        seq, entity, from_state, to_state = row["seq"], row["entity"], row["from_state"], row["to_state"]
        partition = row.get("partition")  # only in rows of a partitioned journal
        before = self._seqs.get(partition, seq)
        if seq < before:
            self._remark(RemarkKind.DISORDER, row, f"this row follows one of seq {before}")
        self.seq = self._seqs[partition] = seq
        self.at = row["at"]
        kind = self._kinds.get(row["machine"]) or self._new_kind(row)
        course = kind.courses.get(entity)
        if course is None:
            course = kind.courses[entity] = self._first_course(kind, row)
        elif course.state != from_state:
            course = kind.courses[entity] = self._next_course(kind, course, row)
        if not row["valid"]:
            self._check_refusal(kind, row)
            return
        if kind.initial is not None and (from_state, row["event_type"], to_state) not in kind.steps:
            self._remark(RemarkKind.UNDECLARED, row, f"the table has no {_step(row)}")
        course.state = to_state
        course.transitions += 1
        course.data = row.get("data", course.data)
        if to_state != from_state:
            course.seq, course.at = seq, row["at"]

    def _new_kind(self, row: Row) -> _MachineEntities:
        name = row["machine"]
        factory = self._factories.get(name)
        if factory is None:
            self._remark(RemarkKind.NO_TABLE, row, "no machine has this name: its states are followed unchecked")
        kind = self._kinds[name] = _MachineEntities(factory)
        return kind

    def _first_course(self, kind: _MachineEntities, row: Row) -> _Course:
        from_state = row["from_state"]
        if kind.initial not in (None, from_state):
            text = f"begins in {from_state}, but the initial state is {kind.initial}"
            self._remark(RemarkKind.GAP if self._from_start else RemarkKind.UNDER_WAY, row, text)
        return _Course(from_state)

    def _next_course(self, kind: _MachineEntities, course: _Course, row: Row) -> _Course:
        """The course for a row that does not start in the entity's state."""
        from_state = row["from_state"]
        if from_state != kind.initial:
            self._remark(RemarkKind.GAP, row, f"is in {course.state}, but {_step(row)} begins in {from_state}")
            course.state, course.seq, course.at = from_state, None, None
            return course
        self._remark(RemarkKind.NEW_MACHINE, row, f"a new machine has its id; the previous one was in {course.state}")
        kind.replaced[course.state] += 1
        return _Course(from_state, course.machines + 1)

    def _check_refusal(self, kind: _MachineEntities, row: Row) -> None:
        from_state, event_type = row["from_state"], row["event_type"]
        if row["to_state"] != from_state:
            text = f"{event_type} is marked as rejected in {from_state}, yet leads to {row['to_state']}"
            self._remark(RemarkKind.NOT_REFUSED, row, text)
        elif (from_state, event_type) in kind.never_refused:
            text = f"{event_type} was rejected in {from_state}, whose table accepts it"
            self._remark(RemarkKind.NOT_REFUSED, row, text)
        else:
            self._remark(RemarkKind.REFUSED, row, f"{from_state} does not accept {event_type}")

    def _remark(self, kind: RemarkKind, row: Row, text: str) -> None:
        self._remark_counts[kind] += 1
        if len(self._remarks[kind]) < KEPT_REMARKS:
            self._remarks[kind].append(Remark(kind, row["seq"], row["machine"], row["entity"], text))


def _step(row: Row) -> str:
    return f"{row['from_state']} -> {row['to_state']} on {row['event_type']}"
