"""Several listeners of one machine, and what their errors do."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import pytest

from statemachines import InvalidStateTransitionError, MultiStateTransitionListener, StateMachine, StateMachineFactory


class S(Enum):
    OPEN = auto()
    CLOSED = auto()


class E(Enum):
    CLOSE = auto()


Notes = list[tuple[str, ...]]


class Listener:
    """Records its calls, then raises if it has an error to raise."""

    def __init__(self, name: str, notes: Notes, *, before: str = "", after: str | BaseException = "") -> None:
        self.name = name
        self.notes = notes
        self.before = before
        self.after = after

    def pre_transition(self, operand: Any, before: Enum, event: Any) -> None:
        self.notes.append((self.name, "pre", operand, before.name, event))
        if self.before:
            raise OSError(self.before)

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        self.notes.append((self.name, "post", operand, before.name, after.name, event))
        if self.after:
            raise self.after if isinstance(self.after, BaseException) else OSError(self.after)


@pytest.fixture
def notes() -> Notes:
    return []


def machine(notes: Notes, *listeners: Listener) -> StateMachine[S, str]:
    """A door with a hook that also records its calls."""
    factory: StateMachineFactory[S, str] = StateMachineFactory(S.OPEN, "Door")
    factory = factory.add_transition(S.OPEN, S.CLOSED, E.CLOSE, lambda *_: notes.append(("hook",)))
    return factory.make("door", listener=MultiStateTransitionListener(*listeners))


def calls(notes: Notes) -> list[tuple[str, ...]]:
    """Listener and step of each call."""
    return [note[:2] for note in notes]


def test_all_are_called_in_the_order_in_which_they_were_added(notes: Notes) -> None:
    door = machine(notes, Listener("one", notes), Listener("two", notes))

    assert door.do_transition(E.CLOSE, "event") is S.CLOSED

    assert notes == [
        ("one", "pre", "door", "OPEN", "event"),
        ("two", "pre", "door", "OPEN", "event"),
        ("hook",),
        ("one", "post", "door", "OPEN", "CLOSED", "event"),
        ("two", "post", "door", "OPEN", "CLOSED", "event"),
    ]


def test_listener_that_is_added_by_another_is_first_called_at_the_next_step(notes: Notes) -> None:
    group = MultiStateTransitionListener()

    class Adding(Listener):
        def pre_transition(self, operand: Any, before: Enum, event: Any) -> None:
            group.add_listener(Listener("late", notes))

    group.add_listener(Adding("adding", notes))

    group.pre_transition("door", S.OPEN, "event")
    assert notes == []
    group.post_transition("door", S.OPEN, S.CLOSED, "event")

    assert calls(notes) == [("adding", "post"), ("late", "post")]


def test_error_before_a_transition_prevents_it_and_later_listeners_are_not_called(notes: Notes) -> None:
    door = machine(notes, Listener("one", notes), Listener("two", notes, before="no"), Listener("three", notes))

    with pytest.raises(OSError, match="no"):
        door.do_transition(E.CLOSE, "event")

    assert calls(notes) == [("one", "pre"), ("two", "pre")]
    assert (door.current_state, door.previous_state) == (S.OPEN, None)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt("disk full")])
def test_error_after_a_transition_propagates_once_all_have_been_called(notes: Notes, error: BaseException) -> None:
    door = machine(notes, Listener("one", notes, after=error), Listener("two", notes))

    with pytest.raises(type(error), match="disk full"):
        door.do_transition(E.CLOSE, "event")

    assert calls(notes)[-2:] == [("one", "post"), ("two", "post")]
    assert (door.current_state, door.previous_state) == (S.CLOSED, S.OPEN)


def test_errors_of_several_after_a_transition_come_as_a_group(notes: Notes) -> None:
    door = machine(notes, *(Listener(name, notes, after=f"{name} failed") for name in ("one", "two", "three")))

    with pytest.raises(ExceptionGroup, match="3 listeners failed after OPEN -> CLOSED") as raised:
        door.do_transition(E.CLOSE, "event")

    assert [str(error) for error in raised.value.exceptions] == ["one failed", "two failed", "three failed"]


def test_refused_event_is_announced_to_all_and_not_followed(notes: Notes) -> None:
    door = machine(notes, Listener("one", notes), Listener("two", notes))
    door.do_transition(E.CLOSE, "event")
    notes.clear()

    with pytest.raises(InvalidStateTransitionError):
        door.do_transition(E.CLOSE, "again")

    assert calls(notes) == [("one", "pre"), ("two", "pre")]


class Told(Listener):
    """As MachineListener."""

    def machine_made(self, operand: Any, machine: str, state: Enum) -> None:
        self.notes.append((self.name, "made", operand, machine, state.name))
        if self.before:
            raise OSError(self.before)

    def transition_refused(self, operand: Any, error: InvalidStateTransitionError) -> None:
        self.notes.append((self.name, "refused", operand, error.state.name, error.event_type.name))
        if self.after:
            raise OSError(self.after)


def test_those_that_ask_for_it_are_told_of_the_making_and_of_refused_events(notes: Notes) -> None:
    door = machine(notes, Listener("one", notes), Told("two", notes), Told("three", notes))
    door.do_transition(E.CLOSE, "event")
    made = notes[:2]
    notes.clear()

    with pytest.raises(InvalidStateTransitionError):
        door.do_transition(E.CLOSE, "again")

    assert made == [("two", "made", "door", "Door", "OPEN"), ("three", "made", "door", "Door", "OPEN")]
    assert notes[3:] == [("two", "refused", "door", "CLOSED", "CLOSE"), ("three", "refused", "door", "CLOSED", "CLOSE")]


def test_all_are_told_of_the_making_and_of_refused_events_whatever_one_raises(notes: Notes) -> None:
    with pytest.raises(OSError, match="no room"):
        machine(notes, Told("one", notes, before="no room"), Told("two", notes))
    door = machine(notes, Told("one", notes, after="disk full"), Told("two", notes))

    for event in ("event", "again"):
        with pytest.raises(OSError, match="disk full"):
            door.do_transition(E.CLOSE, event)

    assert calls(notes)[:2] == [("one", "made"), ("two", "made")]
    assert calls(notes)[-2:] == [("one", "refused"), ("two", "refused")]
    assert door.current_state is S.CLOSED
