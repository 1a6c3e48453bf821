"""Machines that count their transitions themselves behave like those that tell a recorder of each."""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalWriter
from dispatcher.journal import TRANSITIONS, read_rows
from statemachines import InvalidStateTransitionError, StateMachineFactory, TransitionRecorder

from ..journal_rows import begin
from .rings import moves_in_process, ring_of_process


class S(Enum):
    NEW = auto()
    UP = auto()
    DOWN = auto()


class E(Enum):
    START = auto()
    STOP = auto()
    BEAT = auto()


class Signal:
    def __init__(self, type: E) -> None:
        self.type = type


def stop(thing: Thing, event: Signal) -> S:
    if thing.error is not None:
        raise thing.error
    if thing.ends:
        thing.machine_of_it.release()
    return thing.then


FACTORY: StateMachineFactory[S, Any] = (
    StateMachineFactory[S, Any](S.NEW, "Thing")
    .add_transition(S.NEW, S.UP, E.START)
    .add_transition(S.UP, S.UP, E.BEAT)
    .add_transition(S.UP, {S.UP, S.DOWN}, E.STOP, stop)
)


class Thing:
    machine = "Thing"

    def __init__(self, factory: StateMachineFactory[S, Any], recorder: TransitionRecorder, entity: str = "a") -> None:
        self.entity = entity
        self.then = S.DOWN
        self.error: Exception | None = None
        self.ends = False
        self.machine_of_it = factory.make(self, listener=recorder)

    def take(self, *types: E) -> S:
        for type in types:
            self.machine_of_it.do_transition(type, Signal(type))
        return self.machine_of_it.current_state


@pytest.fixture(params=["counts itself", "tells its listener"])
def made(request: pytest.FixtureRequest) -> Any:
    """Makes a factory for a recorder."""
    counts = request.param == "counts itself"
    return lambda recorder: recorder.recorded(FACTORY) if counts else FACTORY


def quiet() -> TransitionRecorder:
    return TransitionRecorder(lists_entities=False)


def test_transitions_are_counted(made: Any) -> None:
    recorder = quiet()
    factory = made(recorder)

    states = [Thing(factory, recorder, name).take(E.START, E.BEAT, E.BEAT) for name in "ab"]
    Thing(factory, recorder, "c").take(E.START, E.STOP)

    stats = recorder.machines["Thing"]
    assert states == [S.UP, S.UP]
    assert stats.transitions == {("NEW", "UP"): 3, ("UP", "UP"): 4, ("UP", "DOWN"): 1}
    assert stats.entities() == {"NEW": 0, "UP": 2, "DOWN": 1}


def test_refused_events_undeclared_states_and_errors_of_hooks_count_nothing(made: Any) -> None:
    recorder = quiet()
    thing = Thing(made(recorder), recorder)

    with pytest.raises(InvalidStateTransitionError, match="no transition from NEW on STOP; NEW accepts START"):
        thing.take(E.STOP)
    thing.take(E.START)
    thing.then = S.NEW
    with pytest.raises(InvalidStateTransitionError, match=r"the hook of UP on STOP chose <S.NEW: 1>"):
        thing.take(E.STOP)
    thing.error = OSError("no disk")
    with pytest.raises(OSError, match="no disk"):
        thing.take(E.STOP)

    assert thing.machine_of_it.current_state is S.UP
    assert thing.machine_of_it.previous_state is S.NEW
    assert recorder.machines["Thing"].transitions == {("NEW", "UP"): 1}


def test_an_event_type_of_another_enum_is_refused(made: Any) -> None:
    class Other(Enum):
        START = auto()

    recorder = quiet()
    thing = Thing(made(recorder), recorder)

    with pytest.raises(InvalidStateTransitionError, match="no transition from NEW on START"):
        thing.machine_of_it.do_transition(Other.START, None)


def test_machines_tell_of_their_making_and_of_refused_events(made: Any, tmp_path: Path) -> None:
    """A machine that no `created()` announced raised a KeyError once its state had changed, and refused events were
    counted and journaled only if the program passed them to `invalid()`."""
    journal = JournalWriter(tmp_path / "journal")
    recorder = TransitionRecorder(journal)
    thing = Thing(made(recorder), recorder)
    begin(journal, 5)

    with pytest.raises(InvalidStateTransitionError) as refused:
        thing.take(E.STOP)
    thing.take(E.START)
    thing.then = S.NEW
    with pytest.raises(InvalidStateTransitionError):
        thing.take(E.STOP)
    recorder.invalid(thing, refused.value)  # programs that call these still run
    recorder.created("Thing", S.NEW, "a")
    journal.close()

    stats = recorder.machines["Thing"]
    assert (stats.created, stats.invalid, stats.entities()) == (1, 2, {"NEW": 0, "UP": 1})
    assert [
        (row["from_state"], row["event_type"], row["to_state"], row["valid"])
        for row in read_rows(journal.path, TRANSITIONS)
    ] == [("NEW", "STOP", "NEW", False), ("NEW", "START", "UP", True), ("UP", "STOP", "UP", False)]
    assert [each.state for each in recorder.find_entity("a")] == ["UP"]


def test_an_operand_that_fails_once_its_machine_has_changed_is_recorded_by_its_class(
    made: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hostile(Thing):
        __hash__ = None  # type: ignore[assignment]

        @property
        def entity(self) -> str:
            if hasattr(self, "machine_of_it"):
                raise OSError("no name")
            return "a"

        @entity.setter
        def entity(self, _: str) -> None: ...

    journal = JournalWriter(tmp_path / "journal")
    recorder = TransitionRecorder(journal)
    changes = recorder.follow()
    thing = Hostile(made(recorder), recorder)
    begin(journal, 5)

    thing.machine_of_it.do_transition(E.START, None)
    journal.close()

    assert thing.machine_of_it.current_state is S.UP
    [row] = read_rows(journal.path, TRANSITIONS)
    assert (row["entity"], row["to_state"]) == ("Hostile", "UP")
    assert list(changes.take().operands.values()) == [thing], "it is neither hashed nor compared"
    assert "Hostile has no `machine` or no `entity` that can be read" in caplog.text


def test_transition_that_releases_the_machine_is_still_recorded_and_none_after_it(made: Any) -> None:
    recorder = quiet()
    thing = Thing(made(recorder), recorder)
    thing.ends, thing.then = True, S.UP
    thing.take(E.START, E.STOP, E.BEAT)

    assert recorder.machines["Thing"].transitions == {("NEW", "UP"): 1, ("UP", "UP"): 1}


def test_each_kind_of_transition_is_journaled_with_its_event(made: Any, tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path / "journal")
    recorder = TransitionRecorder(journal)
    thing = Thing(made(recorder), recorder)
    begin(journal, 5)
    thing.take(E.START, E.BEAT)
    begin(journal, 6)
    thing.take(E.BEAT, E.STOP)
    journal.close()

    rows = list(read_rows(tmp_path / "journal", TRANSITIONS))

    assert [(row["from_state"], row["event_type"], row["to_state"], row["valid"]) for row in rows] == [
        ("NEW", "START", "UP", True),
        ("UP", "BEAT", "UP", True),
        ("UP", "BEAT", "UP", True),
        ("UP", "STOP", "DOWN", True),
    ]
    assert [(row["machine"], row["entity"], row["seq"], row["at"]) for row in rows] == [
        ("Thing", "a", seq, at) for seq, at in ((1, 5), (1, 5), (2, 6), (2, 6))
    ]


def test_followers_learn_what_changed_and_what_was_routine(made: Any) -> None:
    recorder = quiet()
    factory = made(recorder)
    moved, beating = Thing(factory, recorder, "a"), Thing(factory, recorder, "b")
    beating.take(E.START)
    changes = recorder.follow(E.BEAT)

    moved.take(E.START)
    beating.take(E.BEAT)
    first = changes.take()
    recorder.unfollow(changes)
    moved.take(E.BEAT)

    assert (list(first.operands.values()), list(first.routine.values())) == ([moved], [beating])
    assert not changes.take().routine


def test_what_is_routine_to_a_follower_leaves_no_room_in_the_ring(made: Any) -> None:
    recorder = TransitionRecorder()
    thing = Thing(made(recorder), recorder)
    with ring_of_process(100):
        thing.take(E.START, E.BEAT)
        changes = recorder.follow(E.BEAT)
        thing.take(E.BEAT, E.BEAT, E.STOP)
        recorder.unfollow(changes)
        recorder.find_entity("a")

        kept = [event for _, event, _, _ in moves_in_process("a")]

    assert kept == ["STOP", "BEAT", "START"]


def test_recorder_with_transition_methods_of_its_own_is_told_of_each() -> None:
    class Witness(TransitionRecorder):
        def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
            super().post_transition(operand, before, after, event)
            seen.append((before.name, after.name))

    seen: list[tuple[str, str]] = []
    recorder = Witness(lists_entities=False)

    Thing(recorder.recorded(FACTORY), recorder).take(E.START, E.STOP)

    assert seen == [("NEW", "UP"), ("UP", "DOWN")]
    assert recorder.machines["Thing"].transitions == {("NEW", "UP"): 1, ("UP", "DOWN"): 1}


def test_two_recorders_of_one_factory_count_apart() -> None:
    one, other = quiet(), quiet()
    factories = [each.recorded(FACTORY) for each in (one, other)]

    Thing(factories[0], one).take(E.START)
    Thing(factories[1], other).take(E.START, E.BEAT)

    assert one.machines["Thing"].transitions == {("NEW", "UP"): 1}
    assert other.machines["Thing"].transitions == {("NEW", "UP"): 1, ("UP", "UP"): 1}


def test_factory_that_is_recorded_again_counts_on() -> None:
    recorder = quiet()
    Thing(recorder.recorded(FACTORY), recorder).take(E.START)

    Thing(recorder.recorded(FACTORY), recorder).take(E.START)

    assert recorder.machines["Thing"].transitions == {("NEW", "UP"): 2}


def test_machine_with_another_listener_tells_it_alone() -> None:
    recorder, other = quiet(), quiet()

    Thing(recorder.recorded(FACTORY), other).take(E.START)

    assert other.machines["Thing"].transitions == {("NEW", "UP"): 1}
    assert not recorder.machines
