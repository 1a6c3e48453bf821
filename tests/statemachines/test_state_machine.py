"""Machines that follow a factory's table, and how they refuse."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines import InvalidStateTransitionError, StateMachine, StateMachineFactory

from .lights import Diary, E, Factory, Light, Other, Press, S


@pytest.fixture
def factory() -> Factory:
    return StateMachineFactory(S.RED, "Light")


def test_machine_takes_less_than_a_hundred_bytes_beyond_its_operand(factory: Factory) -> None:
    built = factory.add_transition(S.RED, S.GREEN, E.GO).install_topology()
    operands, machines = [object() for _ in range(20_000)], [None] * 20_000

    tracemalloc.start()
    try:
        machines[:] = map(built.make, operands)
        bytes_each = tracemalloc.get_traced_memory()[0] / len(machines)
    finally:
        tracemalloc.stop()

    assert bytes_each < 100  # so that 1,000,000 take less than 200 MB, whatever the allocator adds


@pytest.mark.parametrize("state", [Other.RED, Other.GO])
@pytest.mark.parametrize("synchronized", [False, True])
def test_member_of_another_enum_is_rejected_as_initial_state(factory: Factory, state: Any, synchronized: bool) -> None:
    with pytest.raises(ValueError, match="not one of its states"):
        factory.make("lamp", state, synchronized=synchronized)


@pytest.mark.parametrize("synchronized", [False, True])
def test_machine_in_a_state_that_the_table_lacks_refuses_every_event(factory: Factory, synchronized: bool) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO).make("lamp", S.YELLOW, synchronized=synchronized)

    for event_type in E:
        with pytest.raises(InvalidStateTransitionError, match=r"from YELLOW on .*; YELLOW accepts nothing"):
            machine.do_transition(event_type, None)

    assert machine.current_state is S.YELLOW


def test_single_arc_ignores_its_hooks_result(factory: Factory) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO, lambda *_: S.YELLOW).make("lamp")

    assert machine.do_transition(E.GO, None) is S.GREEN


@pytest.mark.parametrize("chosen", [S.RED, Other.RED, Other.GO, "GREEN", None])
def test_undeclared_choice_is_refused_after_the_hook_and_leaves_the_state(factory: Factory, chosen: Any) -> None:
    diary = Diary()

    def choose(operand: Any, event: Any) -> Any:
        diary.hook(operand, event)
        return chosen

    machine = factory.add_transition(S.RED, {S.GREEN, S.YELLOW}, E.GO, choose).make("lamp", listener=diary)

    with pytest.raises(InvalidStateTransitionError, match=r"RED on GO chose .*, which its arc does not declare"):
        machine.do_transition(E.GO, "event")

    assert (machine.current_state, machine.previous_state) == (S.RED, None)
    assert diary.notes == [("pre", "lamp", S.RED, "event"), ("hook", "lamp", "event")]


def test_listener_hears_before_the_hook_and_after_the_change(factory: Factory) -> None:
    diary = Diary()
    machine: StateMachine[Light, Any]

    def hook(operand: Any, event: Any) -> None:
        diary.notes.append(("state in the hook", machine.current_state))

    machine = factory.add_transition(S.RED, S.GREEN, E.GO, hook).make("lamp", listener=diary)

    machine.do_transition(E.GO, "event")

    assert diary.notes == [
        ("pre", "lamp", S.RED, "event"),
        ("state in the hook", S.RED),
        ("post", "lamp", S.RED, S.GREEN, "event"),
    ]


@pytest.mark.parametrize("post", [S.GREEN, {S.GREEN}])
def test_hook_that_raises_leaves_the_state_and_calls_no_post_listener(factory: Factory, post: Any) -> None:
    diary = Diary()
    machine = factory.add_transition(S.RED, post, E.GO, diary.failing).make("lamp", listener=diary)

    with pytest.raises(KeyError, match="boom"):
        machine.do_transition(E.GO, "event")

    assert (machine.current_state, machine.previous_state) == (S.RED, None)
    assert diary.notes == [("pre", "lamp", S.RED, "event"), ("hook", "lamp", "event")]


# -- the error --------------------------------------------------------------------------------------------------------


def test_refusal_names_the_event_the_accepted_events_and_the_remedy(factory: Factory) -> None:
    class Lamp:
        entity = "lamp_1"

    machine = factory.add_transition(S.RED, S.GREEN, {E.GO, E.WAIT}).make(Lamp())

    with pytest.raises(InvalidStateTransitionError) as refused:
        machine.do_transition(E.STOP, "event")

    error = refused.value
    assert (error.machine, error.entity) == ("Light", "lamp_1")
    assert (error.state, error.event_type, error.event) == (S.RED, E.STOP, "event")
    assert str(error) == (
        "Light lamp_1: no transition from RED on STOP; RED accepts GO, WAIT. "
        "Add the pair to the factory, or drop the event before sending it."
    )


def test_error_takes_the_type_from_the_event_where_none_is_given() -> None:
    class Event:
        type = E.GO

    error = InvalidStateTransitionError(S.RED, Event())

    assert error.event_type is E.GO
    assert str(error).startswith("state machine: no transition from RED on GO. ")


# -- any table --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(S), st.sets(st.sampled_from(S), min_size=1), st.sampled_from(E))),
    st.lists(st.sampled_from(E)),
    st.randoms(use_true_random=False),
)
def test_machine_follows_its_table(arcs: list[tuple[Light, set[Light], Press]], events: list[Press], rng: Any) -> None:
    table = {(pre, event_type): posts for pre, posts, event_type in arcs}
    factory: Factory = StateMachineFactory(S.RED)
    for pre, posts, event_type in arcs:
        factory = factory.add_transition(pre, posts, event_type, lambda operand, event: event)
    machine, state, previous = factory.make("lamp"), S.RED, None

    for event_type in events:
        posts = table.get((state, event_type), set())
        chosen = rng.choice(list(S))
        if chosen in posts:
            assert machine.do_transition(event_type, chosen) is chosen
            state, previous = chosen, state
        else:
            with pytest.raises(InvalidStateTransitionError):
                machine.do_transition(event_type, chosen)
        assert (machine.current_state, machine.previous_state) == (state, previous)


def test_released_machine_frees_its_operand_and_keeps_its_states(factory: Factory) -> None:
    built = factory.add_transition(S.RED, S.GREEN, E.GO, lambda lamp, event: lamp.release())

    class Lamp:
        def __init__(self, listener: Diary) -> None:
            self.machine = built.make(self, listener=listener)

        def release(self) -> None:
            self.machine.release()

    diary = Diary()
    lamp = Lamp(diary)
    machine, freed = lamp.machine, weakref.ref(lamp)

    machine.do_transition(E.GO, "go")
    heard = len(diary.notes)
    diary.notes.clear()
    gc.disable()
    try:
        del lamp
        assert freed() is None
    finally:
        gc.enable()

    assert (machine.previous_state, machine.current_state) == (S.RED, S.GREEN)
    assert heard == 2
