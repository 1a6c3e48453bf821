"""Journals replayed through the state machines alone: hand-written rows, random walks, and a daemon's whole life."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.journal import TRANSITIONS, read_rows
from statemachines import StateMachineFactory, TransitionRecorder
from statemachines.resourcemanager import Replay, ResourceManager, RMNodeEventType
from statemachines.simulation.workload import read_workload
from statemachines.time_travel import END, KEPT_REMARKS, EntityState, Moment, Remark, RemarkKind, TimeTravel, states_at

from ..kit.commands import SAMPLE
from .resourcemanager.inner import RMNodeEvent
from .simulation.replays import app, config, finish, node, task, workload

pytestmark = pytest.mark.long


class S(Enum):
    NEW = auto()
    UP = auto()
    DOWN = auto()
    ODD = auto()  # in no arc


class E(Enum):
    START = auto()
    TURN = auto()
    STOP = auto()


def must_not_run(operand: Any, event: Any) -> Any:
    raise AssertionError("a replay has outside effects")


FACTORY: StateMachineFactory[S, Any] = (
    StateMachineFactory[S, Any](S.NEW, "Thing")
    .add_transition(S.NEW, S.UP, E.START, must_not_run)
    .add_transition(S.UP, (S.UP, S.DOWN), E.TURN, must_not_run)
    .add_transition(S.DOWN, (S.UP, S.DOWN, S.NEW), E.TURN, must_not_run)
    .add_transition(S.UP, S.DOWN, E.STOP, must_not_run)
    .add_transition(S.DOWN, S.DOWN, E.STOP)
)
THINGS = {"Thing": FACTORY}


def row(seq: int, entity: str, step: str, *, at: int | None = None, machine: str = "Thing") -> dict[str, Any]:
    """`step`: "FROM EVENT TO", or "FROM EVENT" of an event that was refused. `at`: seq * 10, if not given."""
    from_state, event_type, *to_states = step.split()
    return {
        "seq": seq,
        "machine": machine,
        "entity": entity,
        "from_state": from_state,
        "event_type": event_type,
        "to_state": to_states[0] if to_states else from_state,
        "at": seq * 10 if at is None else at,
        "valid": bool(to_states),
    }


def travelled(*rows: dict[str, Any], moment: Moment = END, **more: Any) -> TimeTravel:
    return states_at(rows, moment, THINGS, **more)


def states(travel: TimeTravel) -> dict[tuple[str, str], str]:
    return {(each.machine, each.entity): each.state for each in travel.entities()}


def remarks(travel: TimeTravel) -> list[Remark]:
    return [remark for kind in travel.remarks.values() for remark in kind.first]


# -- what is known of an entity ---------------------------------------------------------------------------------------


def test_entity_has_its_state_since_the_event_that_brought_it_there() -> None:
    travel = travelled(
        row(1, "a", "NEW START UP"),
        row(2, "b", "NEW START UP"),
        row(3, "a", "UP TURN DOWN"),
        row(5, "a", "DOWN STOP DOWN"),
    )

    assert list(travel.entities()) == [
        EntityState("Thing", "a", "DOWN", since_seq=3, since_at=30, transitions=3, machines=1),
        EntityState("Thing", "b", "UP", since_seq=2, since_at=20, transitions=1, machines=1),
    ]
    assert (travel.seq, travel.at, travel.is_end) == (5, 50, True)
    assert (travel.disagreements, travel.remarks) == (0, {})


def test_arc_with_several_targets_goes_where_the_journal_says() -> None:
    steps = ["NEW START UP", "UP TURN UP", "UP TURN DOWN", "DOWN TURN DOWN", "DOWN TURN UP"]

    ends = [travelled(*(row(seq, "a", step) for seq, step in enumerate(steps[:length], 1))) for length in range(1, 6)]

    assert [states(travel)["Thing", "a"] for travel in ends] == ["UP", "UP", "DOWN", "DOWN", "UP"]
    assert [travel.remarks for travel in ends] == [{}] * 5


def test_entities_are_counted_by_machine_and_state_in_the_order_of_the_enum() -> None:
    travel = travelled(
        row(1, "a", "NEW START UP"),
        row(2, "a", "UP STOP DOWN"),
        row(3, "b", "NEW START UP"),
        row(4, "c", "NEW START UP"),
        row(5, "x", "Z GO A", machine="Gadget"),
        row(6, "y", "Z GO A", machine="Gadget"),
        row(7, "y", "A GO Z", machine="Gadget"),
    )

    assert {machine: list(each.items()) for machine, each in travel.counts().items()} == {
        "Thing": [("UP", 2), ("DOWN", 1)],
        "Gadget": [("A", 1), ("Z", 1)],
    }


def test_entity_without_a_row_does_not_appear() -> None:
    travel = travelled(row(1, "a", "NEW START UP"))

    assert states(travel) == {("Thing", "a"): "UP"}


def test_journal_without_transitions_has_no_entities() -> None:
    travel = travelled()

    assert (list(travel.entities()), travel.counts(), travel.seq, travel.at, travel.is_end) == (
        [],
        {},
        None,
        None,
        True,
    )


def test_only_wanted_entities_are_followed() -> None:
    rows = [row(1, "a", "NEW START UP"), row(2, "b", "DOWN START UP"), row(3, "x", "Z GO A", machine="Gadget")]

    travel = travelled(*rows, wanted=lambda machine, entity: machine == "Thing" and entity == "a")

    assert states(travel) == {("Thing", "a"): "UP"}
    assert (travel.seq, travel.remarks) == (1, {})


# -- moments ----------------------------------------------------------------------------------------------------------

COURSE = [
    row(2, "a", "NEW START UP", at=100),
    row(2, "b", "NEW START UP", at=100),
    row(4, "a", "UP TURN DOWN", at=100),
    row(5, "b", "UP TURN DOWN", at=101),
    row(9, "a", "DOWN TURN UP", at=300),
]


@pytest.mark.parametrize(
    ("moment", "a", "b", "seq"),
    [
        (Moment(seq=0), None, None, None),
        (Moment(seq=1), None, None, None),
        (Moment(seq=2), "UP", "UP", 2),  # all transitions of the event
        (Moment(seq=3), "UP", "UP", 2),
        (Moment(seq=4), "DOWN", "UP", 4),
        (Moment(seq=8), "DOWN", "DOWN", 5),
        (Moment(seq=9), "UP", "DOWN", 9),
        (Moment(seq=99), "UP", "DOWN", 9),
        (Moment(at=99), None, None, None),
        (Moment(at=100), "DOWN", "UP", 4),  # all events of that time
        (Moment(at=101), "DOWN", "DOWN", 5),
        (Moment(at=299), "DOWN", "DOWN", 5),
        (Moment(at=300), "UP", "DOWN", 9),
        (Moment(seq=2, at=100), "UP", "UP", 2),
        (Moment(seq=9, at=100), "DOWN", "UP", 4),
        (END, "UP", "DOWN", 9),
    ],
)
def test_moment_includes_rows_at_that_moment(moment: Moment, a: str | None, b: str | None, seq: int | None) -> None:
    travel = travelled(*COURSE, moment=moment)

    expected = {("Thing", name): state for name, state in (("a", a), ("b", b)) if state is not None}
    assert (states(travel), travel.seq, travel.is_end) == (expected, seq, seq == 9)


@pytest.mark.parametrize("moment", [Moment(seq=4), Moment(at=100)])
@pytest.mark.parametrize("wanted", [None, lambda machine, entity: False])
def test_nothing_is_read_beyond_the_first_row_after_the_moment(moment: Moment, wanted: Any) -> None:
    rows = iter(COURSE)

    states_at(rows, moment, THINGS, wanted=wanted)

    assert list(rows) == COURSE[4:]


def test_first_row_after_a_time_ends_it_also_where_the_clock_was_set_back() -> None:
    rows = [
        row(1, "a", "NEW START UP", at=500),
        row(2, "a", "UP TURN DOWN", at=100),
        row(3, "a", "DOWN TURN UP", at=101),
        row(4, "a", "UP TURN DOWN", at=501),
        row(5, "a", "DOWN TURN NEW", at=200),
    ]

    assert states(travelled(*rows, moment=Moment(at=500))) == {("Thing", "a"): "UP"}
    assert states(travelled(*rows, moment=Moment(at=200))) == {}


# -- what there is to say ---------------------------------------------------------------------------------------------


def test_refused_event_leaves_the_state_and_is_reported() -> None:
    travel = travelled(row(1, "a", "NEW STOP"), row(2, "b", "NEW START UP"), row(3, "b", "UP START"))

    assert list(travel.entities()) == [
        EntityState("Thing", "a", "NEW", None, None, transitions=0, machines=1),
        EntityState("Thing", "b", "UP", 2, 20, transitions=1, machines=1),
    ]
    assert remarks(travel) == [
        Remark(RemarkKind.REFUSED, 1, "Thing", "a", "NEW does not accept STOP"),
        Remark(RemarkKind.REFUSED, 3, "Thing", "b", "UP does not accept START"),
    ]
    assert travel.disagreements == 0


def test_hook_that_chose_an_undeclared_state_refused_as_well() -> None:
    travel = travelled(row(1, "a", "NEW START UP"), row(2, "a", "UP TURN"))

    assert [remark.kind for remark in remarks(travel)] == [RemarkKind.REFUSED]


def test_event_that_was_refused_although_the_table_takes_it_is_a_disagreement() -> None:
    travel = travelled(row(1, "a", "NEW START"))

    assert states(travel) == {("Thing", "a"): "NEW"}
    text = "START was rejected in NEW, whose table accepts it"
    assert remarks(travel) == [Remark(RemarkKind.NOT_REFUSED, 1, "Thing", "a", text)]
    assert travel.disagreements == 1


def test_refused_event_that_moves_is_a_disagreement() -> None:
    travel = travelled(row(1, "a", "NEW STOP") | {"to_state": "DOWN"})

    assert states(travel) == {("Thing", "a"): "NEW"}
    text = "STOP is marked as rejected in NEW, yet leads to DOWN"
    assert remarks(travel) == [Remark(RemarkKind.NOT_REFUSED, 1, "Thing", "a", text)]


def test_new_machine_under_an_old_id_begins_anew() -> None:
    travel = travelled(
        row(1, "a", "NEW START UP"),
        row(2, "a", "UP STOP DOWN"),
        row(3, "a", "NEW START UP"),
        row(4, "b", "NEW START UP"),
    )

    assert list(travel.entities()) == [
        EntityState("Thing", "a", "UP", 3, 30, transitions=1, machines=2),
        EntityState("Thing", "b", "UP", 4, 40, transitions=1, machines=1),
    ]
    assert travel.replaced() == {"Thing": {"DOWN": 1}}
    text = "a new machine has its id; the previous one was in DOWN"
    assert remarks(travel) == [Remark(RemarkKind.NEW_MACHINE, 3, "Thing", "a", text)]
    assert travel.disagreements == 0


def test_machine_that_returns_to_its_initial_state_is_no_new_one() -> None:
    steps = ["NEW START UP", "UP TURN DOWN", "DOWN TURN NEW", "NEW START UP"]

    travel = travelled(*(row(seq, "a", step) for seq, step in enumerate(steps, 1)))

    assert list(travel.entities()) == [EntityState("Thing", "a", "UP", 4, 40, transitions=4, machines=1)]
    assert (travel.replaced(), travel.remarks) == ({}, {})


def test_entity_of_a_journal_that_begins_later_starts_in_its_first_state() -> None:
    travel = travelled(row(70, "a", "DOWN STOP DOWN"), row(71, "b", "UP STOP DOWN"), from_start=False)

    assert list(travel.entities()) == [
        EntityState("Thing", "a", "DOWN", None, None, transitions=1, machines=1),
        EntityState("Thing", "b", "DOWN", 71, 710, transitions=1, machines=1),
    ]
    assert remarks(travel) == [
        Remark(RemarkKind.UNDER_WAY, 70, "Thing", "a", "begins in DOWN, but the initial state is NEW"),
        Remark(RemarkKind.UNDER_WAY, 71, "Thing", "b", "begins in UP, but the initial state is NEW"),
    ]
    assert travel.disagreements == 0


def test_entity_that_is_under_way_in_a_whole_journal_is_a_disagreement() -> None:
    travel = travelled(row(70, "a", "UP STOP DOWN"))

    assert states(travel) == {("Thing", "a"): "DOWN"}
    assert [remark.kind for remark in remarks(travel)] == [RemarkKind.GAP]
    assert travel.disagreements == 1


def test_row_that_begins_in_another_state_is_followed_and_reported() -> None:
    travel = travelled(row(1, "a", "NEW START UP"), row(5, "a", "DOWN STOP DOWN"), row(6, "a", "DOWN TURN UP"))

    assert list(travel.entities()) == [EntityState("Thing", "a", "UP", 6, 60, transitions=3, machines=1)]
    text = "is in UP, but DOWN -> DOWN on STOP begins in DOWN"
    assert remarks(travel) == [Remark(RemarkKind.GAP, 5, "Thing", "a", text)]


def test_since_when_is_unknown_after_a_gap() -> None:
    travel = travelled(row(1, "a", "NEW START UP"), row(5, "a", "DOWN STOP DOWN"))

    assert list(travel.entities()) == [EntityState("Thing", "a", "DOWN", None, None, transitions=2, machines=1)]


@pytest.mark.parametrize("step", ["UP STOP UP", "UP START DOWN", "UP TURN NEW", "UP LEAP DOWN"])
def test_undeclared_transition_is_followed_and_reported(step: str) -> None:
    from_state, event_type, to_state = step.split()

    travel = travelled(row(1, "a", "NEW START UP"), row(2, "a", step))

    assert states(travel) == {("Thing", "a"): to_state}
    text = f"the table has no {from_state} -> {to_state} on {event_type}"
    assert remarks(travel) == [Remark(RemarkKind.UNDECLARED, 2, "Thing", "a", text)]


@pytest.mark.parametrize("unknown", ["SIDEWAYS", "ODD"])
def test_state_that_the_table_has_not_is_followed_until_the_entity_is_back_in_one_that_it_has(unknown: str) -> None:
    travel = travelled(
        row(1, "a", "NEW START UP"),
        row(2, "a", f"UP STOP {unknown}"),
        row(3, "a", f"{unknown} STOP"),
        row(4, "a", f"{unknown} STOP DOWN"),
        row(5, "a", "DOWN TURN NEW"),
    )

    assert states(travel) == {("Thing", "a"): "NEW"}
    assert {kind: each.total for kind, each in travel.remarks.items()} == {
        RemarkKind.REFUSED: 1,
        RemarkKind.UNDECLARED: 2,
    }


def test_undeclared_machine_is_followed_by_names_and_reported_once() -> None:
    travel = travelled(
        row(1, "x", "A GO B", machine="Gadget"),
        row(2, "x", "B GO C", machine="Gadget"),
        row(3, "x", "C STOP", machine="Gadget"),
        row(4, "y", "B GO A", machine="Gadget"),
    )

    assert states(travel) == {("Gadget", "x"): "C", ("Gadget", "y"): "A"}
    assert [(remark.kind, remark.seq, remark.text) for remark in remarks(travel)] == [
        (RemarkKind.REFUSED, 3, "C does not accept STOP"),
        (RemarkKind.NO_TABLE, 1, "no machine has this name: its states are followed unchecked"),
    ]
    assert travel.disagreements == 0


def test_gap_of_an_undeclared_machine_is_reported() -> None:
    travel = travelled(row(1, "x", "A GO B", machine="Gadget"), row(2, "x", "A GO C", machine="Gadget"))

    assert states(travel) == {("Gadget", "x"): "C"}
    assert travel.disagreements == 1


def test_rows_out_of_order_are_reported() -> None:
    travel = travelled(row(5, "a", "NEW START UP"), row(4, "b", "NEW START UP"))

    assert remarks(travel) == [Remark(RemarkKind.DISORDER, 4, "Thing", "b", "this row follows one of seq 5")]
    assert travel.disagreements == 1


def test_remarks_are_all_counted_and_the_first_kept() -> None:
    number = KEPT_REMARKS + 5

    travel = states_at((row(seq, "a", "NEW STOP") for seq in range(1, number + 1)), factories=THINGS)

    (refused,) = travel.remarks.values()
    assert (refused.total, len(refused.first), refused.first[-1].seq) == (number, KEPT_REMARKS, KEPT_REMARKS)


# -- random walks -----------------------------------------------------------------------------------------------------

ARCS = [(each.from_state.name, each.event.name, to.name) for each in FACTORY.transitions() for to in each.to_states]
REFUSED = {"NEW": ["TURN", "STOP"], "UP": ["START"], "DOWN": ["START"]}


@st.composite
def walks(draw: Any) -> list[dict[str, Any]]:
    """A journal's rows: entities walk the table at random, are refused, and are replaced by new machines."""
    rows: list[dict[str, Any]] = []
    where: dict[str, str] = {}
    seq = at = 0
    for _ in range(draw(st.integers(0, 40))):
        seq += draw(st.integers(0, 2))
        at += draw(st.sampled_from([0, 0, 1, 7]))
        entity = draw(st.sampled_from("abc"))
        from_state = where.get(entity, "NEW")
        if draw(st.integers(0, 9)) == 0:
            from_state = "NEW"
        if draw(st.integers(0, 4)) == 0:
            step = f"{from_state} {draw(st.sampled_from(REFUSED[from_state]))}"
            where[entity] = from_state
        else:
            arc = draw(st.sampled_from([arc for arc in ARCS if arc[0] == from_state]))
            step = " ".join(arc)
            where[entity] = arc[2]
        rows.append(row(seq, entity, step, at=at))
    return rows


def last_states(rows: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """The model: an entity is in the state of its last row."""
    return {(each["machine"], each["entity"]): each["to_state"] for each in rows}


@given(walks(), st.integers(0, 90), st.integers(0, 300))
def test_replay_of_any_walk_ends_in_the_state_of_its_last_row_before_the_moment(
    rows: list[dict[str, Any]], seq: int, at: int
) -> None:
    whole = travelled(*rows)
    by_seq = travelled(*rows, moment=Moment(seq=seq))
    by_time = travelled(*rows, moment=Moment(at=at))

    assert whole.disagreements == 0
    assert states(whole) == last_states(rows)
    assert states(by_seq) == last_states([each for each in rows if each["seq"] <= seq])
    assert states(by_time) == last_states([each for each in rows if each["at"] <= at])


@given(walks())
def test_each_life_of_an_id_is_counted_apart(rows: list[dict[str, Any]]) -> None:
    lives: dict[str, list[list[dict[str, Any]]]] = {}
    for each in rows:
        known = lives.setdefault(each["entity"], [[]])
        if each["from_state"] == "NEW" and known[-1] and known[-1][-1]["to_state"] != "NEW":
            known.append([])
        known[-1].append(each)

    travel = travelled(*rows)

    assert {each.entity: (each.machines, each.transitions) for each in travel.entities()} == {
        entity: (len(known), sum(each["valid"] for each in known[-1])) for entity, known in lives.items()
    }
    ended = Counter(life[-1]["to_state"] for known in lives.values() for life in known[:-1])
    assert travel.replaced().get("Thing", {}) == dict(ended)


# -- the daemon's own life --------------------------------------------------------------------------------------------


class Witness:
    """Records which objects of a daemon ever made a transition and, at chosen moments, the state of each."""

    def __init__(self, patch: pytest.MonkeyPatch, looks_after: frozenset[int]) -> None:
        """`looks_after`: numbers of journaled transitions, from 1, after which it looks."""
        self._entities: dict[Any, None] = {}  # in the order of their first transition
        self.seen: dict[int, dict[tuple[str, str], str]] = {}
        self._looks_after = looks_after
        self._rows = 0
        moved = TransitionRecorder.record

        def note_moved(recorder: TransitionRecorder, entity: Any, *args: Any) -> None:
            moved(recorder, entity, *args)
            self._entities[entity] = None
            self._rows += 1
            if self._rows in self._looks_after:
                self.seen[self._rows] = self.states()

        patch.setattr(TransitionRecorder, "record", note_moved)

    def states(self) -> dict[tuple[str, str], str]:
        """By machine and entity, including forgotten ones."""
        return {(entity.machine, entity.entity): entity.state.name for entity in self._entities}


class Life:
    """A replay with its journal's transitions and its witness; nothing was refused in it."""

    def __init__(self, manager: ResourceManager, rows: list[dict[str, Any]], witness: Witness) -> None:
        self.manager = manager
        self.rows = rows
        self.witness = witness


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A part of the sample workload, with ended applications forgotten early."""
    path = tmp_path_factory.mktemp("sample") / "journal"
    sample = read_workload(SAMPLE)
    part = replace(sample, applications=tuple(islice(sample.applications, 50)))
    replay = Replay(part, config(max_completed_applications=50), journal_path=path)
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch, frozenset(random.Random(6).sample(range(100, 12_000), 40)))
        finish(replay)
    return Life(replay.manager, list(read_rows(path, TRANSITIONS)), witness)


def test_whole_journal_ends_in_the_states_that_the_daemon_had(life: Life) -> None:
    travel = states_at(life.rows)

    assert (travel.disagreements, travel.remarks) == (0, {})
    assert states(travel) == life.witness.states()
    assert len(states(travel)) > 800
    context = life.manager.context
    kept: list[Any] = [*context.apps.values(), *context.attempts.values(), *context.containers.values()]
    kept += [*context.nodes.values(), *context.inactive_nodes.values()]
    assert len(kept) > 150
    assert {(each.machine, each.entity): each.state.name for each in kept}.items() <= states(travel).items()


def test_counts_equal_the_daemons_recorder(life: Life) -> None:
    travel = states_at(life.rows)

    machines = life.manager.recorder.machines
    assert set(travel.counts()) == set(machines) == {"RMApp", "RMAppAttempt", "RMContainer", "RMNode"}
    for machine, stats in machines.items():
        entities = [each for each in travel.entities() if each.machine == machine]
        assert travel.counts()[machine] == {state: n for state, n in stats.entities().items() if n}
        assert len(entities) == stats.created
        assert sum(each.transitions for each in entities) == sum(stats.transitions.values())


def test_at_any_seq_the_states_are_those_that_the_daemon_had_then(life: Life) -> None:
    rows, seen = life.rows, life.witness.seen
    borders = [number for number in sorted(seen) if rows[number - 1]["seq"] != rows[number]["seq"]]
    assert len(borders) >= 5

    for number in borders[:: len(borders) // 5]:
        travel = states_at(rows, Moment(seq=rows[number - 1]["seq"]))

        assert states(travel) == seen[number]


def test_states_at_any_time_equal_the_last_rows(life: Life) -> None:
    rows, moments = life.rows, random.Random(7)
    for limit in moments.sample(range(rows[-1]["seq"]), 3):
        travel = states_at(rows, Moment(seq=limit))
        assert states(travel) == last_states([each for each in rows if each["seq"] <= limit])

    for limit in moments.sample(range(rows[-1]["at"]), 3):
        travel = states_at(rows, Moment(at=limit))
        assert states(travel) == last_states([each for each in rows if each["at"] <= limit])


def test_node_that_registers_again_is_a_new_machine_in_daemon_and_replay(tmp_path: Path) -> None:
    """It is lost and comes back; later its node manager is restarted on another port for HTTP."""
    spec = node("n1")
    work = workload(spec, node("n2"), app(tasks=(task(5000),)))
    replay = Replay(work, config(), journal_path=tmp_path / "journal")
    manager = replay.manager

    def plan() -> None:
        at = manager.context.timers.register_timer
        at(2000, lambda _: manager.context.post(RMNodeEvent(RMNodeEventType.EXPIRE, "n1:45454")))
        at(3000, lambda _: manager.tracker.register_node(spec))
        at(4000, lambda _: manager.tracker.register_node(replace(spec, http_port=8043)))

    manager.dispatcher.mailbox_executor.execute(plan, "plan")
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch, frozenset())
        finish(replay)

    travel = states_at(read_rows(tmp_path / "journal", TRANSITIONS))

    assert travel.disagreements == 0
    assert states(travel) == witness.states()
    (again,) = [each for each in travel.entities() if each.entity == "n1:45454"]
    assert (again.state, again.since_at, again.machines) == ("RUNNING", 4_000_000_000, 3)
    assert travel.replaced() == {"RMNode": {"RUNNING": 1, "LOST": 1}}
    both = Counter(travel.counts()["RMNode"]) + Counter(travel.replaced()["RMNode"])
    assert both == +Counter(manager.recorder.machines["RMNode"].entities())
