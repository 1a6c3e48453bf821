"""Machines as people draw them: guards, and hooks and timeouts of states."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from statemachines import InvalidStateTransitionError, StateMachineFactory, TransitionRecorder
from statemachines.arc_hooks import ArcHook
from statemachines.topology import build

from .test_graph import drawn


class State(Enum):
    SHUT = 1
    OPEN = 2
    LOCKED = 3


class Type(Enum):
    PUSHED = 1
    CLOSED = 2
    LOCKED = 3
    KNOCKED = 4
    LEFT_OPEN = 5


class Other(Enum):
    SHUT = 1


class Door:
    machine = "Door"

    def __init__(self, *, has_key: bool = False, is_jammed: bool = False) -> None:
        self.entity = "door_1"
        self.has_key, self.is_jammed = has_key, is_jammed
        self.calls: list[str] = []


def has_key(door: Door, event: Any) -> bool:
    door.calls.append("guard")
    return door.has_key


def is_jammed(door: Door, event: Any) -> bool:
    return door.is_jammed


def says(word: str) -> Callable[[Door, Any], None]:
    def hook(door: Door, event: Any) -> None:
        door.calls.append(word)

    hook.__name__ = word
    return hook


def fails(door: Door, event: Any) -> None:
    raise RuntimeError("the hinge is broken")


S, E = State, Type
Factory = StateMachineFactory[State, Door]
DOORS: Factory = (
    StateMachineFactory[State, Door](S.SHUT, "Door")
    .add_transition(S.SHUT, S.OPEN, E.PUSHED, says("push"))
    .add_transition(S.OPEN, S.SHUT, {E.CLOSED, E.LEFT_OPEN})
    .add_transition(S.SHUT, S.LOCKED, E.LOCKED, guard=has_key)
    .add_transition({S.SHUT, S.OPEN}, {S.SHUT, S.OPEN}, E.KNOCKED, lambda door, event: event)
)
NOISY = DOORS.on_exit(S.SHUT, says("leave")).on_entry({S.OPEN, S.SHUT}, says("enter")).on_entry(S.OPEN, says("creak"))


@pytest.fixture(params=["plain", "synchronized", "recorded"])
def door(request: pytest.FixtureRequest) -> Callable[..., tuple[Any, Door]]:
    """Makes a machine of each kind with its door."""

    def make(factory: Factory, **about: bool) -> tuple[Any, Door]:
        door, recorder = Door(**about), TransitionRecorder()
        if request.param == "recorded":
            return recorder.recorded(factory).make(door, listener=recorder), door
        return factory.make(door, synchronized=request.param == "synchronized"), door

    return make


Make = Callable[..., tuple[Any, Door]]


# -- guards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["guarded", "plain"])
def test_guarded_arcs_are_tried_in_order_and_the_one_without_a_guard_last(door: Make, first: str) -> None:
    otherwise = StateMachineFactory[State, Door](S.SHUT, "Door")
    if first == "plain":
        otherwise = otherwise.add_transition(S.SHUT, S.SHUT, E.LOCKED)
    factory = otherwise.add_transition(S.SHUT, S.OPEN, E.LOCKED, guard=is_jammed)
    factory = factory.add_transition(S.SHUT, S.LOCKED, E.LOCKED, guard=has_key)
    if first == "guarded":
        factory = factory.add_transition(S.SHUT, S.SHUT, E.LOCKED)

    taken = [
        door(factory, has_key=key, is_jammed=jammed)[0].do_transition(E.LOCKED, None)
        for key, jammed in ((True, True), (True, False), (False, False))
    ]

    assert taken == [S.OPEN, S.LOCKED, S.SHUT]


def test_a_state_refuses_an_event_if_no_guard_holds(door: Make) -> None:
    machine, _ = door(DOORS)

    with pytest.raises(
        InvalidStateTransitionError, match=r"no transition from SHUT on LOCKED: no guard holds \(has_key"
    ):
        machine.do_transition(E.LOCKED, None)

    assert machine.current_state is S.SHUT


def test_a_guard_that_raises_leaves_the_state_as_it_was(door: Make) -> None:
    machine, _ = door(DOORS.add_transition(S.SHUT, S.LOCKED, E.CLOSED, guard=fails))

    with pytest.raises(RuntimeError, match="hinge"):
        machine.do_transition(E.CLOSED, None)

    assert (machine.current_state, machine.previous_state) == (S.SHUT, None)


def test_a_later_arc_replaces_the_one_with_the_same_guard(door: Make) -> None:
    machine, _ = door(DOORS.add_transition(S.SHUT, S.OPEN, E.LOCKED, guard=has_key), has_key=True)

    assert machine.do_transition(E.LOCKED, None) is S.OPEN


def test_the_hook_of_a_guarded_arc_chooses_among_the_states_of_its_own_arc(door: Make) -> None:
    factory = DOORS.add_transition(S.SHUT, {S.OPEN, S.SHUT}, E.LOCKED, lambda door, event: S.LOCKED, guard=is_jammed)
    machine, _ = door(factory, is_jammed=True)

    with pytest.raises(InvalidStateTransitionError, match=r"chose <State\.LOCKED: 3>, which its arc does not declare"):
        machine.do_transition(E.LOCKED, None)


# -- hooks of states -------------------------------------------------------------------------------------------------


def test_hooks_run_from_the_arcs_own_to_the_entered_states(door: Make) -> None:
    machine, operand = door(NOISY)

    machine.do_transition(E.PUSHED, None)

    assert (operand.calls, machine.current_state) == (["push", "leave", "enter", "creak"], S.OPEN)


def test_a_state_that_is_not_left_calls_no_hook_of_its_own(door: Make) -> None:
    machine, operand = door(NOISY)

    machine.do_transition(E.KNOCKED, S.SHUT)
    stays = list(operand.calls)
    machine.do_transition(E.KNOCKED, S.OPEN)

    assert (stays, operand.calls) == ([], ["leave", "enter", "creak"])


def test_an_arc_may_enter_its_state_again(door: Make) -> None:
    machine, operand = door(NOISY.add_transition(S.SHUT, S.SHUT, E.CLOSED, reenter=True))

    machine.do_transition(E.CLOSED, None)

    assert operand.calls == ["leave", "enter"]


@pytest.mark.parametrize("add", [lambda f: f.on_exit(S.SHUT, fails), lambda f: f.on_entry(S.OPEN, fails)])
def test_a_hook_of_a_state_that_raises_leaves_the_state_as_it_was(
    door: Make, add: Callable[[Factory], Factory]
) -> None:
    machine, _ = door(add(DOORS))

    with pytest.raises(RuntimeError, match="hinge"):
        machine.do_transition(E.PUSHED, None)

    assert (machine.current_state, machine.previous_state) == (S.SHUT, None)


def test_machines_without_such_features_keep_their_plain_arcs() -> None:
    arcs = build(S.SHUT, "Door", DOORS.on_exit(S.LOCKED, says("leave"))._table())["SHUT"].arcs

    assert [arcs[name].target is not None for name in ("PUSHED", "LOCKED", "KNOCKED")] == [True, False, False]
    assert not any(isinstance(arcs[name].hook, ArcHook) for name in ("PUSHED", "KNOCKED"))


# -- declarations ----------------------------------------------------------------------------------------------------


async def later(door: Door, event: Any) -> None: ...


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: DOORS.timeout(S.LOCKED, 5, E.PUSHED).install_topology(), "LOCKED has a timeout of 5 s with PUSHED"),
        (lambda: DOORS.timeout(S.OPEN, 0, E.LEFT_OPEN), "at least 0.001 seconds"),
        (lambda: DOORS.timeout(S.OPEN, -1, E.LEFT_OPEN), "seconds must be"),
        (lambda: DOORS.timeout(set(), 1, E.LEFT_OPEN), "timeout needs at least one state"),
        (lambda: DOORS.on_entry("OPEN", says("x")), "Enum members, got 'OPEN'"),  # type: ignore[type-var]
        (lambda: DOORS.on_entry(Other.SHUT, says("x")).install_topology(), "of different Enums"),  # type: ignore[type-var]
        (lambda: DOORS.on_entry(S.OPEN, later), "must be a plain function"),
        (lambda: DOORS.add_transition(S.SHUT, S.OPEN, E.PUSHED, guard=later), "guard must be a plain function"),
        (lambda: DOORS.add_transition(S.SHUT, S.OPEN, E.PUSHED, reenter=True), "from a state to itself"),
    ],
)
def test_mistakes_are_told_when_the_table_is_made(declare: Callable[[], Factory], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        declare()


# -- tables and drawings ---------------------------------------------------------------------------------------------


DRAWN = (
    StateMachineFactory[State, Door](S.SHUT, "Door")
    .add_transition(S.SHUT, S.OPEN, [E.PUSHED, E.CLOSED])
    .add_transition(S.OPEN, S.SHUT, E.LEFT_OPEN)
    .add_transition(S.SHUT, S.LOCKED, E.LOCKED, guard=has_key)
    .add_transition(S.OPEN, {S.SHUT, S.OPEN}, E.KNOCKED, lambda door, event: S.OPEN)
    .on_entry(S.OPEN, says("creak"))
    .timeout(S.OPEN, 30, E.LEFT_OPEN)
)


def test_tables_have_a_row_for_each_pair_and_drawings_an_arrow_with_guards_timeouts_and_hooks() -> None:
    table, diagram, dot = (drawn(f"{__name__}:DRAWN", form).splitlines() for form in ("csv", "mermaid", "dot"))
    assert table == [
        "from_state,event,to_states,arc,guard,after_s",
        "SHUT,PUSHED,OPEN,single,,",
        "SHUT,CLOSED,OPEN,single,,",
        "OPEN,LEFT_OPEN,SHUT,single,,30",
        "SHUT,LOCKED,LOCKED,single,has_key,",
        "OPEN,KNOCKED,OPEN|SHUT,multiple,,",
    ]
    assert diagram == [
        "stateDiagram-v2",
        "  [*] --> SHUT",
        "  SHUT --> OPEN: PUSHED, CLOSED",
        "  OPEN --> SHUT: LEFT_OPEN after 30 s, KNOCKED",
        "  SHUT --> LOCKED: LOCKED [has_key]",
        "  OPEN --> OPEN: KNOCKED",
        "  note right of OPEN",
        "    entry / creak",
        "  end note",
    ]
    assert dot == [
        'digraph "Door" {',
        "  rankdir=LR;",
        "  node [shape=box, style=rounded];",
        '  "OPEN" [label="OPEN\\nentry / creak"];',
        '  "SHUT" -> "OPEN" [label="PUSHED\\nCLOSED"];',
        '  "OPEN" -> "SHUT" [label="LEFT_OPEN after 30 s\\nKNOCKED"];',
        '  "SHUT" -> "LOCKED" [label="LOCKED [has_key]"];',
        '  "OPEN" -> "OPEN" [label="KNOCKED"];',
        "}",
    ]
