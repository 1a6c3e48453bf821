"""The table of transitions, and the machines that follow it."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum, auto
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines import InvalidStateTransitionError, StateMachine, StateMachineFactory, Transition


class Light(Enum):
    RED = auto()
    GREEN = auto()
    YELLOW = auto()


class Press(Enum):
    GO = auto()
    STOP = auto()
    WAIT = auto()


class Other(Enum):
    GO = auto()
    RED = auto()


Factory = StateMachineFactory[Light, Any]
S, E = Light, Press


@pytest.fixture
def factory() -> Factory:
    return StateMachineFactory(S.RED, "Light")


class Diary:
    """A listener, and hooks, that note what they are told, in order."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def pre_transition(self, operand: Any, before: Enum, event: Any) -> None:
        self.notes.append(("pre", operand, before, event))

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        self.notes.append(("post", operand, before, after, event))

    def hook(self, operand: Any, event: Any) -> None:
        self.notes.append(("hook", operand, event))

    def failing(self, operand: Any, event: Any) -> None:
        self.notes.append(("hook", operand, event))
        raise KeyError("boom")


def rows(factory: Factory) -> list[Transition]:
    return list(factory.transitions())


# -- building ---------------------------------------------------------------------------------------------------------


def test_add_transition_returns_a_new_factory_and_leaves_the_old_one_as_it_was(factory: Factory) -> None:
    one = factory.add_transition(S.RED, S.GREEN, E.GO)
    one.make("lamp")

    two = one.add_transition(S.GREEN, S.RED, E.STOP)

    assert rows(factory) == []
    assert rows(one) == [(S.RED, E.GO, (S.GREEN,), "single")]
    assert rows(two) == [*rows(one), (S.GREEN, E.STOP, (S.RED,), "single")]
    assert two.make("lamp", S.GREEN).do_transition(E.STOP, None) is S.RED


def test_machines_of_a_factory_do_not_see_what_is_added_to_it_later(factory: Factory) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO).make("lamp")

    factory.add_transition(S.RED, S.YELLOW, E.GO)

    assert machine.do_transition(E.GO, None) is S.GREEN


def test_later_arc_replaces_the_earlier_one_of_the_same_pair(factory: Factory) -> None:
    diary = Diary()
    replaced = factory.add_transition(S.RED, S.GREEN, E.GO, diary.hook).add_transition(S.RED, S.YELLOW, E.STOP)

    final = replaced.add_transition(S.RED, {S.YELLOW}, E.GO, lambda *_: S.YELLOW)

    assert rows(final) == [(S.RED, E.GO, (S.YELLOW,), "multiple"), (S.RED, E.STOP, (S.YELLOW,), "single")]
    assert final.make("lamp").do_transition(E.GO, None) is S.YELLOW
    assert diary.notes == []
    assert replaced.make("lamp").do_transition(E.GO, None) is S.GREEN


@pytest.mark.parametrize("types", [{E.STOP, E.GO}, [E.GO, E.STOP], (E.GO, E.STOP), iter([E.GO, E.STOP])])
def test_several_event_types_give_an_arc_each(factory: Factory, types: Any) -> None:
    diary = Diary()

    built = factory.add_transition(S.RED, S.GREEN, types, diary.hook)

    assert rows(built) == [(S.RED, E.GO, (S.GREEN,), "single"), (S.RED, E.STOP, (S.GREEN,), "single")]
    for event_type in (E.GO, E.STOP):
        assert built.make("lamp").do_transition(event_type, "event") is S.GREEN
    assert diary.notes == [("hook", "lamp", "event")] * 2


@pytest.mark.parametrize("posts", [{S.YELLOW, S.GREEN}, frozenset({S.YELLOW, S.GREEN}), [S.GREEN, S.YELLOW]])
def test_set_of_post_states_makes_a_multiple_arc(factory: Factory, posts: Any) -> None:
    built = factory.add_transition(S.RED, posts, E.GO, lambda *_: S.GREEN)

    assert rows(built) == [(S.RED, E.GO, (S.GREEN, S.YELLOW), "multiple")]


def test_set_of_one_post_state_is_a_multiple_arc_too(factory: Factory) -> None:
    built = factory.add_transition(S.RED, {S.GREEN}, E.GO, lambda *_: S.GREEN)

    assert rows(built) == [(S.RED, E.GO, (S.GREEN,), "multiple")]


@pytest.mark.parametrize(
    ("pre", "post", "types", "error", "message"),
    [
        (S.RED, {S.GREEN}, E.GO, ValueError, r"from RED to \{GREEN\}: .* needs a hook"),
        (S.RED, set(), E.GO, ValueError, "from RED: .* at least one"),
        (S.RED, S.GREEN, (), ValueError, "from RED: .* at least one"),
        (S.RED, "GREEN", E.GO, TypeError, "Enum members, got 'G'"),
        ("RED", S.GREEN, E.GO, TypeError, "Enum members, got 'RED'"),
        (S.RED, S.GREEN, ["GO"], TypeError, "Enum members, got 'GO'"),
        (S.RED, S.GREEN, {"GO"}, TypeError, "Enum members, got 'GO'"),
    ],
)
def test_bad_arc_is_refused_when_it_is_added(
    factory: Factory, pre: Any, post: Any, types: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        factory.add_transition(pre, post, types)


def test_states_of_two_enums_with_one_name_are_refused_when_the_table_is_built(factory: Factory) -> None:
    mixed = factory.add_transition(S.RED, Other.RED, E.GO)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="of different Enums"):
        mixed.install_topology()


def test_event_types_of_two_enums_with_one_name_are_refused_when_the_table_is_built(factory: Factory) -> None:
    mixed = factory.add_transition(S.RED, S.GREEN, E.GO).add_transition(S.RED, S.YELLOW, Other.GO)

    with pytest.raises(ValueError, match="two Enums, one name"):
        mixed.make("lamp")


@pytest.mark.parametrize("installed", [False, True])
def test_machines_are_the_same_with_and_without_an_installed_topology(factory: Factory, installed: bool) -> None:
    built = factory.add_transition(S.RED, S.GREEN, E.GO)

    built = built.install_topology() if installed else built

    assert (built.name, built.initial_state) == ("Light", S.RED)
    assert rows(built) == [(S.RED, E.GO, (S.GREEN,), "single")]
    assert built.make("lamp").do_transition(E.GO, None) is S.GREEN


def test_rows_come_in_the_same_order_whatever_the_hash_seed() -> None:
    code = (
        "from enum import Enum\n"
        "from statemachines import StateMachineFactory\n"
        "S = Enum('S', [f's{i}' for i in range(20)])\n"
        "A = Enum('A', [f'a{i}' for i in range(10)])\n"
        "B = Enum('B', [f'b{i}' for i in range(10)])\n"
        "factory = StateMachineFactory(S.s0).add_transition(S.s0, set(S), {*A, *B}, lambda *_: S.s1)\n"
        "print([(row.event.name, [to.name for to in row.to_states]) for row in factory.transitions()])\n"
    )

    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]

    assert printed[0].startswith("[('a0', ['s0', 's1', 's2',")
    assert printed == [printed[0]] * 3


# -- machines ---------------------------------------------------------------------------------------------------------


def test_machine_starts_in_the_factorys_initial_state(factory: Factory) -> None:
    machine = factory.make("lamp")

    assert (machine.current_state, machine.previous_state) == (S.RED, None)


def test_machine_can_start_in_another_state_of_the_table(factory: Factory) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO).make("lamp", S.GREEN)

    assert (machine.current_state, machine.previous_state) == (S.GREEN, None)


@pytest.mark.parametrize("state", [S.YELLOW, Other.RED])
def test_state_that_the_table_lacks_is_no_initial_state(factory: Factory, state: Any) -> None:
    with pytest.raises(ValueError, match="not one of its states"):
        factory.make("lamp", state)


def test_single_arc_ignores_what_its_hook_returns(factory: Factory) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO, lambda *_: S.YELLOW).make("lamp")

    assert machine.do_transition(E.GO, None) is S.GREEN


@pytest.mark.parametrize("chosen", [S.GREEN, S.YELLOW, S.RED])
def test_hook_of_a_multiple_arc_chooses_the_state(factory: Factory, chosen: Light) -> None:
    machine = factory.add_transition(S.RED, set(S), E.GO, lambda operand, event: event).make("lamp")

    assert machine.do_transition(E.GO, chosen) is chosen
    assert (machine.current_state, machine.previous_state) == (chosen, S.RED)


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


def test_pair_without_an_arc_is_refused_with_the_listener_called_before_only(factory: Factory) -> None:
    diary = Diary()
    machine = factory.add_transition(S.RED, S.GREEN, E.GO).make("lamp", listener=diary)

    with pytest.raises(InvalidStateTransitionError):
        machine.do_transition(E.STOP, "event")

    assert (machine.current_state, machine.previous_state) == (S.RED, None)
    assert diary.notes == [("pre", "lamp", S.RED, "event")]


def test_member_of_another_enum_with_the_same_name_is_refused(factory: Factory) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO).make("lamp")

    with pytest.raises(InvalidStateTransitionError) as refused:
        machine.do_transition(Other.GO, "event")

    assert refused.value.event_type is Other.GO
    assert machine.current_state is S.RED


def test_machine_goes_on_after_a_refusal(factory: Factory) -> None:
    machine = factory.add_transition(S.RED, S.GREEN, E.GO).make("lamp")
    with pytest.raises(InvalidStateTransitionError):
        machine.do_transition(E.STOP, None)

    assert machine.do_transition(E.GO, None) is S.GREEN


def test_previous_state_is_the_one_before_the_last_transition(factory: Factory) -> None:
    built = factory.add_transition(S.RED, S.GREEN, E.GO).add_transition(S.GREEN, S.GREEN, E.WAIT)
    machine = built.make("lamp")

    seen = [(machine.do_transition(event_type, None), machine.previous_state) for event_type in (E.GO, E.WAIT)]

    assert seen == [(S.GREEN, S.RED), (S.GREEN, S.GREEN)]


# -- the error --------------------------------------------------------------------------------------------------------


def test_refusal_says_what_happened_what_would_have_been_right_and_what_to_do(factory: Factory) -> None:
    class Lamp:
        entity = "lamp_1"

    machine = factory.add_transition(S.RED, S.GREEN, {E.GO, E.WAIT}).make(Lamp())

    with pytest.raises(InvalidStateTransitionError) as refused:
        machine.do_transition(E.STOP, "event")

    error = refused.value
    assert (error.state, error.event_type, error.event) == (S.RED, E.STOP, "event")
    assert str(error) == (
        "Light lamp_1: no transition from RED on STOP; RED accepts GO, WAIT. "
        "Add the pair to the factory, or drop the event before sending it."
    )


def test_refusal_by_a_state_without_arcs_says_so(factory: Factory) -> None:
    with pytest.raises(InvalidStateTransitionError, match=r"Light str: .*; RED accepts nothing"):
        factory.make("lamp").do_transition(E.GO, None)


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
    machine, state = factory.make("lamp"), S.RED

    for event_type in events:
        posts = table.get((state, event_type), set())
        chosen = rng.choice(list(S))
        if chosen in posts:
            assert machine.do_transition(event_type, chosen) is chosen
            state = chosen
        else:
            with pytest.raises(InvalidStateTransitionError):
                machine.do_transition(event_type, chosen)
        assert machine.current_state is state
