"""What a TransitionRecorder collects for a follower."""

from __future__ import annotations

from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from statemachines import TransitionRecorder
from statemachines import changes as module

from .lights import Light, Press


def entity(recorder: TransitionRecorder, name: str) -> SimpleNamespace:
    made = SimpleNamespace(machine="Light", entity=name)
    recorder.machine_made(made, "Light", Light.RED)
    return made


Taken = tuple[list[Any], list[Any], set[tuple[str, str]], bool]


def taken(changes: module.ChangedEntities) -> Taken:
    operands, routine, forgotten, is_complete = changes.take()
    return list(operands.values()), list(routine.values()), forgotten, is_complete


def event(type: Press) -> SimpleNamespace:
    return SimpleNamespace(type=type)


@pytest.fixture
def recorder() -> TransitionRecorder:
    return TransitionRecorder(lists_entities=False)


def test_routine_that_changes_no_state_is_told_apart(recorder: TransitionRecorder) -> None:
    one = entity(recorder, "one")
    changes = recorder.follow(Press.GO)

    recorder.post_transition(one, Light.RED, Light.RED, event(Press.GO))
    assert taken(changes) == ([], [one], set(), True)
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))
    assert taken(changes)[0] == [one]


def test_event_without_a_type_is_no_routine_where_there_is_none(recorder: TransitionRecorder) -> None:
    """Its type, None, was taken for the routine type of a log without one."""
    one = entity(recorder, "one")
    changes = recorder.follow()

    recorder.post_transition(one, Light.RED, Light.RED, SimpleNamespace())

    assert taken(changes) == ([one], [], set(), True)


def test_changes_without_a_transition_and_forgotten_entities_count(recorder: TransitionRecorder) -> None:
    one = entity(recorder, "one")
    changes = recorder.follow()

    recorder.changed(one)
    recorder.forgotten("Light", Light.RED, "one")

    assert taken(changes) == ([one], [], {("Light", "one")}, True)


def test_nothing_is_collected_once_the_follower_has_left(recorder: TransitionRecorder) -> None:
    one, changes = entity(recorder, "one"), recorder.follow()
    recorder.unfollow(changes)

    recorder.changed(one)
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))

    assert taken(changes)[0] == []


def test_each_follower_gets_all_changes(recorder: TransitionRecorder) -> None:
    one, other = entity(recorder, "one"), entity(recorder, "other")
    early = recorder.follow()
    recorder.changed(one)
    late = recorder.follow()
    recorder.changed(other)

    assert taken(early)[0] == [one, other]
    assert taken(late)[0] == [other], "what was before this follower came is not its own"
    recorder.unfollow(early)
    recorder.changed(one)
    assert taken(late)[0] == [one]


def test_a_follower_that_never_looks_keeps_no_more_than_the_bound(
    recorder: TransitionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    silent, other = recorder.follow(), recorder.follow()
    for number in range(5):
        recorder.changed(entity(recorder, f"entity {number}"))
        assert len(other.take().operands) == 1

    changed = silent.take()

    assert not changed.is_complete
    assert len(changed.operands) <= 3
    recorder.changed(last := entity(recorder, "last"))
    assert taken(silent) == ([last], [], set(), True)


def test_followers_have_one_routine(recorder: TransitionRecorder) -> None:
    recorder.follow(Press.GO)
    with pytest.raises(ValueError, match="routine"):
        recorder.follow()


def test_what_would_be_given_out_is_counted_beforehand(recorder: TransitionRecorder) -> None:
    one, other = entity(recorder, "one"), entity(recorder, "other")
    changes, second = recorder.follow(), recorder.follow()
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))
    second.take()
    recorder.post_transition(other, Light.RED, Light.GREEN, event(Press.GO))
    recorder.forgotten("Light", Light.GREEN, "other")

    assert (changes.count(), second.count()) == (3, 2)
    changes.take()
    assert (changes.count(), second.count()) == (0, 2)


def test_finalizers_of_dropped_entities_may_read_changes(
    recorder: TransitionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ran under the log's lock, for which such a reader waited for ever."""
    monkeypatch.setattr(module, "MOST", 1)
    changes, waiting = recorder.follow(), list[bool]()

    class Finalized(SimpleNamespace):
        def __del__(self) -> None:
            reader = Thread(target=changes.count, daemon=True)
            reader.start()
            reader.join(60)
            waiting.append(reader.is_alive())

    for name in ("one", "other"):
        recorder.post_transition(Finalized(machine="Light", entity=name), Light.RED, Light.GREEN, event(Press.GO))
    changes.count()

    assert waiting == [False, False]
