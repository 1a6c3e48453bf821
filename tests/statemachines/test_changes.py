"""What a TransitionRecorder collects for a follower."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from statemachines import changes as module
from statemachines.recorder import TransitionRecorder

from .lights import Light, Press


def entity(recorder: TransitionRecorder, name: str) -> SimpleNamespace:
    """Hashed by identity, as entities are."""
    made = _Entity(machine="Light", entity=name)
    recorder.machine_made(made, "Light", Light.RED)
    return made


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

    assert changes.take() == ({other}, set(), set(), True), "what was before the follower came is not collected"
    assert changes.take() == (set(), set(), set(), True)


def test_routine_that_changes_no_state_is_told_apart(recorder: TransitionRecorder) -> None:
    one = entity(recorder, "one")
    changes = recorder.follow(Press.GO)

    recorder.post_transition(one, Light.RED, Light.RED, event(Press.GO))
    assert changes.take() == (set(), {one}, set(), True)
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))
    assert changes.take().operands == {one}


def test_changes_without_a_transition_and_forgotten_entities_count(recorder: TransitionRecorder) -> None:
    one = entity(recorder, "one")
    changes = recorder.follow()

    recorder.changed(one)
    recorder.forgotten("Light", Light.RED, "one")

    assert changes.take() == ({one}, set(), {("Light", "one")}, True)


def test_too_many_changes_are_dropped_and_said_to_be(
    recorder: TransitionRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    changes = recorder.follow()
    for number in range(100):
        recorder.changed(entity(recorder, str(number)))

    assert not changes.take().is_complete
    recorder.changed(last := entity(recorder, "last"))
    assert changes.take() == ({last}, set(), set(), True)


def test_what_nobody_takes_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    collector = module.Collector(None)
    collector.follow()
    for number in range(100):
        collector.now.operands.add(number)
        collector.keep_within_bounds()
        assert len(collector.now.operands) <= 10


def test_nothing_is_collected_once_the_follower_has_left(recorder: TransitionRecorder) -> None:
    one, changes = entity(recorder, "one"), recorder.follow()
    recorder.unfollow(changes)

    recorder.changed(one)
    recorder.post_transition(one, Light.RED, Light.GREEN, event(Press.GO))

    assert changes.take().operands == set()


def test_each_follower_gets_all_changes(recorder: TransitionRecorder) -> None:
    one, other = entity(recorder, "one"), entity(recorder, "other")
    early = recorder.follow()
    recorder.changed(one)
    late = recorder.follow()
    recorder.changed(other)

    assert early.take().operands == {one, other}
    assert late.take().operands == {other}, "what was before this follower came is not its own"
    recorder.unfollow(early)
    recorder.changed(one)
    assert late.take().operands == {one}


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
