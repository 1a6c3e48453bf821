"""The table of transitions: how it is declared and built."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum, IntEnum
from typing import Any

import pytest

from statemachines import StateMachineFactory

from .lights import Diary, E, Factory, Other, S


@pytest.fixture
def factory() -> Factory:
    return StateMachineFactory(S.RED, "Light")


def rows(factory: Factory) -> list[tuple[Any, ...]]:
    """Without guards and timeouts."""
    return [row[:4] for row in factory.transitions()]


def test_add_transition_returns_a_new_factory_and_leaves_the_old_one_as_it_was(factory: Factory) -> None:
    one = factory.add_transition(S.RED, S.GREEN, E.GO)
    one.make("lamp")

    two = one.add_transition(S.GREEN, S.RED, E.STOP)

    assert rows(factory) == []
    assert rows(one) == [(S.RED, E.GO, (S.GREEN,), "single")]
    assert rows(two) == [*rows(one), (S.GREEN, E.STOP, (S.RED,), "single")]
    assert two.make("lamp", S.GREEN).do_transition(E.STOP, None) is S.RED


def test_later_arc_replaces_the_earlier_one_of_the_same_pair(factory: Factory) -> None:
    diary = Diary()
    replaced = factory.add_transition(S.RED, S.GREEN, E.GO, diary.hook).add_transition(S.RED, S.YELLOW, E.STOP)

    final = replaced.add_transition(S.RED, {S.YELLOW}, E.GO, lambda *_: S.YELLOW)

    assert rows(final) == [(S.RED, E.GO, (S.YELLOW,), "multiple"), (S.RED, E.STOP, (S.YELLOW,), "single")]
    assert final.make("lamp").do_transition(E.GO, None) is S.YELLOW
    assert diary.notes == []
    assert replaced.make("lamp").do_transition(E.GO, None) is S.GREEN
    both = final.add_transition({S.RED, S.GREEN}, S.GREEN, E.GO)
    assert rows(both)[0] == (S.RED, E.GO, (S.GREEN,), "single")
    assert len(rows(both)) == 3


@pytest.mark.parametrize(
    ("post", "event_type", "message"),
    [(Other.RED, E.STOP, "of different Enums"), (S.YELLOW, Other.GO, "two Enums, one name")],
)
def test_members_of_two_enums_with_one_name_are_refused_when_the_table_is_built(
    factory: Factory, post: Any, event_type: Any, message: str
) -> None:
    mixed = factory.add_transition(S.RED, S.GREEN, E.GO).add_transition(S.RED, post, event_type)

    with pytest.raises(ValueError, match=message):
        mixed.make("lamp")


@pytest.mark.parametrize("types", [{E.STOP, E.GO}, [E.GO, E.STOP], (E.GO, E.STOP), iter([E.GO, E.STOP])])
def test_several_event_types_give_an_arc_each(factory: Factory, types: Any) -> None:
    diary = Diary()

    built = factory.add_transition(S.RED, S.GREEN, types, diary.hook)

    assert rows(built) == [(S.RED, E.GO, (S.GREEN,), "single"), (S.RED, E.STOP, (S.GREEN,), "single")]
    for event_type in (E.GO, E.STOP):
        assert built.make("lamp").do_transition(event_type, "event") is S.GREEN
    assert diary.notes == [("hook", "lamp", "event")] * 2


@pytest.mark.parametrize("pres", [{S.GREEN, S.RED}, frozenset({S.RED, S.GREEN})])
def test_set_of_pre_states_gives_an_arc_from_each(factory: Factory, pres: Any) -> None:
    diary = Diary()

    built = factory.add_transition(pres, S.YELLOW, [E.GO, E.STOP], diary.hook)

    assert rows(built) == [
        (pre, event_type, (S.YELLOW,), "single") for pre in (S.RED, S.GREEN) for event_type in (E.GO, E.STOP)
    ]
    for pre in (S.RED, S.GREEN):
        assert built.make("lamp", pre).do_transition(E.GO, "event") is S.YELLOW
    assert diary.notes == [("hook", "lamp", "event")] * 2


@pytest.mark.parametrize("posts", [{S.YELLOW, S.GREEN}, frozenset({S.YELLOW}), [S.GREEN, S.YELLOW, S.GREEN]])
def test_set_of_post_states_makes_a_multiple_arc(factory: Factory, posts: Any) -> None:
    built = factory.add_transition(S.RED, posts, E.GO, lambda *_: S.YELLOW)

    assert rows(built) == [(S.RED, E.GO, tuple(each for each in (S.GREEN, S.YELLOW) if each in posts), "multiple")]


@pytest.mark.parametrize(
    ("pre", "post", "types", "error", "message"),
    [
        (S.RED, {S.GREEN}, E.GO, ValueError, r"from RED to \{GREEN\}: .* needs a hook"),
        (S.RED, set(), E.GO, ValueError, "from RED: .* at least one"),
        (S.RED, S.GREEN, (), ValueError, "from RED: .* at least one"),
        (S.RED, "GREEN", E.GO, TypeError, "Enum members, got 'G'"),
        ("RED", S.GREEN, E.GO, TypeError, "Enum members, got 'RED'"),
        (set(), S.GREEN, E.GO, ValueError, "to GREEN: .* at least one pre state"),
        ({S.RED, "GREEN"}, S.YELLOW, E.GO, TypeError, "Enum members, got 'GREEN'"),
        ({S.RED, S.GREEN}, {S.YELLOW}, E.GO, ValueError, r"from RED, GREEN to \{YELLOW\}: .* needs a hook"),
        ({S.RED, S.GREEN}, S.YELLOW, (), ValueError, "from RED, GREEN: .* at least one event type"),
        (S.RED, S.GREEN, ["GO"], TypeError, "Enum members, got 'GO'"),
        (S.RED, S.GREEN, {"GO"}, TypeError, "Enum members, got 'GO'"),
    ],
)
def test_bad_arc_is_refused_when_it_is_added(
    factory: Factory, pre: Any, post: Any, types: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        factory.add_transition(pre, post, types)


def test_members_of_two_enums_that_are_equal_are_two_event_types(factory: Factory) -> None:
    """Arcs were compared by equality: one replaced the other."""

    class Up(IntEnum):
        FASTER = 1

    class Down(IntEnum):
        SLOWER = 1

    built = factory.add_transition(S.RED, S.GREEN, Up.FASTER).add_transition(S.RED, S.YELLOW, Down.SLOWER)
    both = factory.add_transition(S.RED, S.GREEN, [Up.FASTER, Down.SLOWER])

    assert built.make("lamp").do_transition(Up.FASTER, None) is S.GREEN
    assert built.make("lamp").do_transition(Down.SLOWER, None) is S.YELLOW
    assert [row[1] for row in rows(both)] == [Up.FASTER, Down.SLOWER]


@pytest.mark.long
@pytest.mark.timeout(60)
def test_large_table_is_built_in_time_that_grows_with_its_length() -> None:
    """Each arc copied those before it: these would have taken hours."""
    states = Enum("states", [f"s{number}" for number in range(200)])  # type: ignore[misc]
    types = Enum("types", [f"e{number}" for number in range(250)])  # type: ignore[misc]
    factory: StateMachineFactory[Any, Any] = StateMachineFactory(states["s0"])

    for state in states:
        for event_type in types:
            factory = factory.add_transition(state, states["s0"], event_type)
    factory = factory.install_topology()

    assert len(rows(factory)) == 200 * 250
    assert factory.make("lamp", states["s199"]).do_transition(types["e249"], None) is states["s0"]


@pytest.mark.parametrize("installed", [False, True])
def test_machines_are_the_same_with_and_without_an_installed_topology(factory: Factory, installed: bool) -> None:
    built = factory.add_transition(S.RED, S.GREEN, E.GO)

    built = built.install_topology() if installed else built

    assert (built.name, built.initial_state) == ("Light", S.RED)
    assert rows(built) == [(S.RED, E.GO, (S.GREEN,), "single")]
    assert built.make("lamp").do_transition(E.GO, None) is S.GREEN


@pytest.mark.long
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
        for seed in ("1", "2")
    ]

    assert printed[0].startswith("[('a0', ['s0', 's1', 's2',")
    assert printed == [printed[0]] * 2
