"""Journals replayed through the state machines alone: hand-written rows, random walks, and a daemon's whole life."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.journal import TRANSITIONS, read_rows
from statemachines import StateMachineFactory, TransitionRecorder
from statemachines.resourcemanager import Replay, ResourceManager, RMNodeEventType
from statemachines.simulation.workload import read_workload
from statemachines.time_travel import END, KEPT_REMARKS, EntityState, Moment, Remark, TimeTravel, states_at

from ..kit.commands import SAMPLE
from .resourcemanager.inner import RMNodeEvent
from .simulation.replays import app, config, finish, node, task, workload
from .test_states_of_machines import DRAWN as DOORS

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


class Told(NamedTuple):
    """A journal's rows, what is known of its entities then, and what there is to say of it.

    Of a row, `SEQ ENTITY FROM EVENT TO`; of a refused event, without TO, or with `!TO`. Of an entity, its state, since
    which seq, how many transitions it has made and, if there were several with its id, how many.
    """

    rows: str
    entities: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    disagreements: int = 0
    from_start: bool = True


def rows_of(script: str) -> list[dict[str, Any]]:
    found = []
    for seq, entity, *step in map(str.split, script.split("|")):
        machine, _, id = entity.rpartition("/")
        is_refused = step[-1].startswith("!")
        made = row(int(seq), id, " ".join(step[: 2 if is_refused else 3]), machine=machine or "Thing")
        found.append(made | ({"to_state": step[-1][1:]} if is_refused else {}))
    return found


UNCHECKED = "NO_TABLE 1 Gadget/x: no machine has this name: its states are followed unchecked"
TOLD = {
    "a refused event leaves the state": Told(
        "1 a NEW STOP | 2 b NEW START UP | 3 b UP START",
        ("a NEW since - 0", "b UP since 2 1"),
        ("REFUSED 1 a: NEW does not accept STOP", "REFUSED 3 b: UP does not accept START"),
    ),
    "a hook that chose an undeclared state refused as well": Told(
        "1 a NEW START UP | 2 a UP TURN",
        ("a UP since 1 1",),
        ("REFUSED 2 a: UP does not accept TURN",),
    ),
    "an event that was refused although the table takes it": Told(
        "1 a NEW START",
        ("a NEW since - 0",),
        ("NOT_REFUSED 1 a: START was rejected in NEW, whose table accepts it",),
        1,
    ),
    "a refused event that moves": Told(
        "1 a NEW STOP !DOWN",
        ("a NEW since - 0",),
        ("NOT_REFUSED 1 a: STOP is marked as rejected in NEW, yet leads to DOWN",),
        1,
    ),
    "a new machine under an old id begins anew": Told(
        "1 a NEW START UP | 2 a UP STOP DOWN | 3 a NEW START UP | 4 b NEW START UP",
        ("a UP since 3 1 of 2", "b UP since 4 1"),
        ("NEW_MACHINE 3 a: a new machine has its id; the previous one was in DOWN",),
    ),
    "a machine that returns to its initial state is no new one": Told(
        "1 a NEW START UP | 2 a UP TURN DOWN | 3 a DOWN TURN NEW | 4 a NEW START UP", ("a UP since 4 4",)
    ),
    "an entity of a journal that begins later starts in its first state": Told(
        "70 a DOWN STOP DOWN | 71 b UP STOP DOWN",
        ("a DOWN since - 1", "b DOWN since 71 1"),
        (
            "UNDER_WAY 70 a: begins in DOWN, but the initial state is NEW",
            "UNDER_WAY 71 b: begins in UP, but the initial state is NEW",
        ),
        from_start=False,
    ),
    "an entity that is under way in a whole journal": Told(
        "70 a UP STOP DOWN", ("a DOWN since 70 1",), ("GAP 70 a: begins in UP, but the initial state is NEW",), 1
    ),
    "a row that begins in another state is followed": Told(
        "1 a NEW START UP | 5 a DOWN STOP DOWN | 6 a DOWN TURN UP",
        ("a UP since 6 3",),
        ("GAP 5 a: is in UP, but DOWN -> DOWN on STOP begins in DOWN",),
        1,
    ),
    "since when is unknown after a gap": Told(
        "1 a NEW START UP | 5 a DOWN STOP DOWN",
        ("a DOWN since - 2",),
        ("GAP 5 a: is in UP, but DOWN -> DOWN on STOP begins in DOWN",),
        1,
    ),
    **{
        f"an undeclared transition, UP to {to} on {event}, is followed": Told(
            f"1 a NEW START UP | 2 a UP {event} {to}",
            (f"a {to} since {since} 2",),
            (f"UNDECLARED 2 a: the table has no UP -> {to} on {event}",),
            1,
        )
        for event, to, since in (("STOP", "UP", 1), ("START", "DOWN", 2), ("TURN", "NEW", 2), ("LEAP", "DOWN", 2))
    },
    **{
        f"a state that the table has not, {odd}, is followed until the entity is back in one that it has": Told(
            f"1 a NEW START UP | 2 a UP STOP {odd} | 3 a {odd} STOP | 4 a {odd} STOP DOWN | 5 a DOWN TURN NEW",
            ("a NEW since 5 4",),
            (
                f"REFUSED 3 a: {odd} does not accept STOP",
                f"UNDECLARED 2 a: the table has no UP -> {odd} on STOP",
                f"UNDECLARED 4 a: the table has no {odd} -> DOWN on STOP",
            ),
            2,
        )
        for odd in ("SIDEWAYS", "ODD")
    },
    "an undeclared machine is followed by names": Told(
        "1 Gadget/x A GO B | 2 Gadget/x B GO C | 3 Gadget/x C STOP | 4 Gadget/y B GO A",
        ("Gadget/x C since 2 2", "Gadget/y A since 4 1"),
        (
            "REFUSED 3 Gadget/x: C does not accept STOP",
            UNCHECKED,
        ),
    ),
    "the gap of an undeclared machine": Told(
        "1 Gadget/x A GO B | 2 Gadget/x A GO C",
        ("Gadget/x C since 2 2",),
        (UNCHECKED, "GAP 2 Gadget/x: is in B, but A -> C on GO begins in A"),
        1,
    ),
    "rows out of order": Told(
        "5 a NEW START UP | 4 b NEW START UP",
        ("a UP since 5 1", "b UP since 4 1"),
        ("DISORDER 4 b: this row follows one of seq 5",),
        1,
    ),
}


def named(each: EntityState | Remark) -> str:
    """The entity as rows name it."""
    return each.entity if each.machine == "Thing" else f"{each.machine}/{each.entity}"


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_row_is_followed_and_reported(told: Told) -> None:
    travel = travelled(*rows_of(told.rows), from_start=told.from_start)

    found = list(travel.entities())
    assert [each.since_at for each in found] == [each.since_seq and 10 * each.since_seq for each in found]
    assert [
        f"{named(each)} {each.state} since {each.since_seq or '-'} {each.transitions}"
        + (f" of {each.machines}" if each.machines > 1 else "")
        for each in found
    ] == list(told.entities)
    said = [f"{each.kind.name} {each.seq} {named(each)}: {each.text}" for each in remarks(travel)]
    assert (said, travel.disagreements) == (list(told.remarks), told.disagreements)


def test_remarks_are_all_counted_and_the_first_kept() -> None:
    number = KEPT_REMARKS + 5

    travel = states_at((row(seq, "a", "NEW STOP") for seq in range(1, number + 1)), factories=THINGS)

    (refused,) = travel.remarks.values()
    assert (refused.total, len(refused.first), refused.first[-1].seq) == (number, KEPT_REMARKS, KEPT_REMARKS)


def test_each_guarded_arc_is_followed_and_a_refusal_by_guards_is_one() -> None:
    steps = ["SHUT LOCKED", "SHUT PUSHED OPEN", "OPEN LEFT_OPEN SHUT", "SHUT LOCKED LOCKED"]
    rows = [row(seq, "door_1", step, machine="Door") for seq, step in enumerate(steps, 1)]

    travel = states_at(rows, factories={"Door": DOORS})

    assert states(travel) == {("Door", "door_1"): "LOCKED"}
    assert (travel.disagreements, [kind.name for kind in travel.remarks]) == (0, ["REFUSED"])


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


class Life(NamedTuple):
    """A replay with its journal's transitions and its witness; nothing was refused in it."""

    manager: ResourceManager
    rows: list[dict[str, Any]]
    witness: Witness


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
