"""What a TransitionRecorder collects for a follower."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from statemachines import changes as module
from statemachines.recorder import TransitionRecorder

from .lights import Light, Press


def entity(recorder: TransitionRecorder, name: str) -> SimpleNamespace:
    """Hashed by identity, as entities are."""
    recorder.created("Light", Light.RED, name)
    return _Entity(machine="Light", entity=name)


class _Entity(SimpleNamespace):
    __hash__ = object.__hash__


def event(type: Press) -> SimpleNamespace:
    return SimpleNamespace(type=type)


@pytest.fixture
def recorder() -> TransitionRecorder:
    return TransitionRecorder(lists_entities=False)


def test_entities_that_changed_are_given_out_once(recorder: TransitionRecorder) -> None:
    one, other = entity(recorder, "one"), entity(recorder, "other")
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))
    changes = recorder.follow()
    recorder.post_transition(other, Light.RED, Light.GREEN, event(Press.GO))

    assert changes.take() == ({other}, set(), True), "what was before the follower came is not collected"
    assert changes.take() == (set(), set(), True)


def test_routine_that_changes_no_state_does_not_count(recorder: TransitionRecorder) -> None:
    one = entity(recorder, "one")
    changes = recorder.follow(Press.GO)

    recorder.post_transition(one, Light.RED, Light.RED, event(Press.GO))
    assert changes.take().operands == set()
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))
    assert changes.take().operands == {one}


def test_changes_without_a_transition_and_forgotten_entities_count(recorder: TransitionRecorder) -> None:
    one = entity(recorder, "one")
    changes = recorder.follow()

    recorder.changed(one)
    recorder.forgotten("Light", Light.RED, "one")

    assert changes.take() == ({one}, {("Light", "one")}, True)


def test_too_many_changes_are_dropped_and_said_to_be(
    recorder: TransitionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    changes = recorder.follow()
    for number in range(100):
        recorder.changed(entity(recorder, str(number)))
        assert len(changes.operands) <= 11

    assert not changes.take().is_complete
    recorder.changed(last := entity(recorder, "last"))
    assert changes.take() == ({last}, set(), True)


def test_nothing_is_collected_once_the_follower_has_left(recorder: TransitionRecorder) -> None:
    one, changes = entity(recorder, "one"), recorder.follow()
    recorder.unfollow(changes)

    recorder.changed(one)
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))

    assert changes.take().operands == set()
