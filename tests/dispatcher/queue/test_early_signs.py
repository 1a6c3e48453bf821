"""When a dispatcher shows signs of trouble: sizes and counts are read at checks, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.dispatching.early_signs import EarlySigns

from ...kit import Numbered, until
from ...kit.journals import no_room
from ...kit.services import fail


@dataclass
class Counts:
    """The counters of one event type."""

    event_class: str = "Work"
    name: str = "DONE"
    handled: int = 0
    failed: int = 0


class Course:
    """Signs that are checked by hand, once a second."""

    def __init__(self, **config: object) -> None:
        self.size, self.second, self.lost = 0, 0, 0
        self.count = Counts()
        self.counts: Iterable[Counts] = [self.count]
        self.signs = EarlySigns(
            DispatcherConfig.model_validate(config),
            lambda: self.size,
            lambda: cast("Any", self.counts),
            lambda: self.lost,
            lambda: self.second * 1_000_000_000,
        )

    def check(self, size: int = 0) -> list[str]:
        self.size = size
        self.second += 1
        self.signs.check()
        return [sign.name for sign in self.signs.present]

    def sizes(self, sizes: Iterable[int]) -> list[list[str]]:
        return [self.check(size) for size in sizes]


GROWS = ["queue_grows"]


def test_a_queue_that_has_grown_for_ten_seconds_is_a_sign_until_it_no_longer_does() -> None:
    course = Course()

    found = course.sizes(range(0, 5000, 200))

    assert found[:10] == [[]] * 10
    assert found[10:] == [GROWS] * 15
    assert course.signs.present[0].detail == "4,800 events in the queue, 2,000 more than 10 s ago"
    assert course.sizes([4800] * 12)[-1] == []


SILENT: dict[str, Sequence[int]] = {
    "one that is long": [50_000] * 30,
    "a short one that grows": range(0, 900, 30),
    "one that is worked off": range(90_000, 1000, -3000),
    "a burst that is worked off": [0] * 6 + list(range(60_000, 0, -4000)),
    "one that goes up and down": [1000, 9000] * 15,
    "one that has grown for a moment": [1000] * 12 + [1500, 2500, 4000] + [4000] * 12,
}


@pytest.mark.parametrize("sizes", SILENT.values(), ids=SILENT.keys())
def test_no_other_queue_is_a_sign(sizes: Sequence[int]) -> None:
    assert {each for found in Course().sizes(sizes) for each in found} == set()


def test_a_type_of_which_a_tenth_fails_is_a_sign_for_a_minute() -> None:
    course = Course()
    course.check()
    (counts,) = course.counts

    counts.handled, counts.failed = 90, 9
    few = course.check()
    counts.handled, counts.failed = 90, 10
    enough = course.check()
    detail = course.signs.present[0].detail
    counts.handled += 1000
    diluted = course.check()
    counts.failed += 1000
    again = course.check()
    later = [course.check() for _ in range(70)][-1]

    assert (few, enough, diluted, again, later) == ([], ["events_fail"], [], ["events_fail"], [])
    assert detail == "10 of the last 100 events Work.DONE failed"


def test_a_lost_dead_letter_is_a_sign_for_a_minute() -> None:
    course = Course()
    before = course.check()

    course.lost = 3
    after = [course.check() for _ in range(60)]
    detail = course.signs.present
    course.lost = 4

    assert (before, after) == ([], [["letters_lost"]] * 60)
    assert detail[0].detail == "3 dead letters could not be stored, the last within a minute"
    assert course.check() == ["letters_lost"]
    assert [course.check() for _ in range(60)][-1] == []


def test_thresholds_are_settings_and_null_disables_them() -> None:
    soon = Course(queue_grows_warn_s=3, queue_grows_warn_from=5, failing_warn_share=0.5, failing_warn_from=1)
    never = Course(queue_grows_warn_s=None, failing_warn_share=None)
    for course in (soon, never):
        course.count.failed = 1
        course.sizes(range(0, 3000, 500))

    assert [sign.name for sign in soon.signs.present] == ["queue_grows", "events_fail"]
    assert never.signs.present == ()


def test_a_check_that_is_overtaken_by_the_stop_shows_nothing() -> None:
    """A stopped dispatcher stayed degraded."""
    course = Course()

    def stop_amid_the_check() -> Iterator[Counts]:
        course.signs.clear()
        yield Counts(failed=100)

    course.counts = stop_amid_the_check()

    assert course.check() == []


def test_a_dispatcher_that_loses_a_dead_letter_shows_it(make: Callable[..., AsyncDispatcher]) -> None:
    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.04), handler=fail, dead_letters=no_room)

    dispatcher.event_handler.handle(Numbered())

    until(lambda: [sign.name for sign in dispatcher.view.signs()] == ["letters_lost"])


def test_a_dispatcher_is_checked_while_nobody_looks_and_shows_none_once_it_has_stopped(
    make: Callable[..., AsyncDispatcher],
) -> None:
    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.04), handler=fail)
    for _ in range(20):
        dispatcher.event_handler.handle(Numbered())

    until(lambda: [sign.name for sign in dispatcher.view.signs()] == ["events_fail"])
    during = dispatcher.stats().degraded
    dispatcher.stop()

    assert during == {"queue_grows": 0, "events_fail": 1, "letters_lost": 0}
    assert dispatcher.view.signs() == ()
