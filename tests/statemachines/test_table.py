"""Tables written as rows of data."""

from __future__ import annotations

from statemachines import Transition
from statemachines.table import STAY, from_table

from .lights import Diary, E, S


def test_row_holds_for_each_of_its_states_and_events() -> None:
    factory = from_table("Light", S, [((S.RED, S.YELLOW), S.GREEN, {E.GO, E.WAIT})])

    assert list(factory.transitions()) == [
        Transition(before, event, (S.GREEN,), "single") for before in (S.RED, S.YELLOW) for event in (E.GO, E.WAIT)
    ]


def test_machine_stays_in_the_state_of_a_row_that_enters_none() -> None:
    factory = from_table("Light", S, [(set(S), STAY, E.WAIT)])

    assert [machine.do_transition(E.WAIT, None) for machine in map(factory.make, S, S)] == list(S)


def test_machine_starts_in_the_first_state_and_calls_the_hook_of_its_row() -> None:
    diary = Diary()
    machine = from_table("Light", S, [(S.RED, S.GREEN, E.GO, diary.hook)]).make("lamp")

    machine.do_transition(E.GO, "event")

    assert (machine.previous_state, machine.current_state) == (S.RED, S.GREEN)
    assert diary.notes == [("hook", "lamp", "event")]


def test_table_is_sorted_by_state_whatever_the_order_of_its_rows() -> None:
    rows = [(S.YELLOW, S.RED, E.STOP), (S.RED, S.GREEN, E.GO), (S.YELLOW, S.GREEN, E.GO)]

    ordered = from_table("Light", S, rows).transitions()

    assert [(row.from_state, row.event) for row in ordered] == [(S.RED, E.GO), (S.YELLOW, E.STOP), (S.YELLOW, E.GO)]
