"""The sampler of rates: its windows, and the thread that serves all doors of the process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from dispatcher import AsyncDispatcher
from dispatcher.ops.sampler import POINTS, Sampler, SharedSampler
from dispatcher.util.histogram import Histogram
from dispatcher.view import FailureKey, QueueCounts

from .client import Job

WAIT_S = 60.0
TypeKey = tuple[str, str]


class Stats:
    """The part of a dispatcher's statistics that is sampled."""

    def __init__(self) -> None:
        self.handled = self.failed = self.queue_size = 0
        self.idle_s = 0.0
        self.mailbox_latency: Histogram | None = Histogram()
        self.handled_by_type: dict[TypeKey, int] = {}
        self.failed_by_type: dict[TypeKey, int] = {}
        self.retried_by_type: dict[TypeKey, int] = {}
        self.handling_by_type: dict[TypeKey, tuple[int, float]] = {}

    @property
    def accepted(self) -> int:
        return self.handled + self.failed + self.queue_size


class View:
    """A dispatcher whose counters a test sets."""

    def __init__(self) -> None:
        self.numbers = Stats()
        self.newest: dict[Job, int] = {}
        self.failing: dict[FailureKey, int] = {}

    def stats(self) -> Stats:
        return self.numbers

    def failure_counts(self) -> dict[FailureKey, int]:
        return self.failing.copy()

    def newest_queued(self, last: int, most: int) -> QueueCounts[Job]:
        return QueueCounts(self.newest, last > most)


class Course:
    """A sampler and its clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.view: Any = View()
        self.sampler = Sampler(lambda: [self.view], lambda: self.now_s)

    def run(self, seconds: int, each: Callable[[Stats], None]) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            each(self.view.numbers)
            self.sampler.sample()


@pytest.fixture
def course() -> Course:
    return Course()


def handle(count: int) -> Callable[[Stats], None]:
    def add(stats: Stats) -> None:
        stats.handled += count

    return add


def test_each_window_has_its_own_rate(course: Course) -> None:
    course.run(61, handle(10))
    course.run(9, handle(0))
    course.run(1, handle(100))

    assert course.sampler.rates(course.view) == {"1s": 100.0, "10s": 10.0, "60s": pytest.approx(10.0, abs=0.2)}


def test_a_sampler_that_is_late_counts_the_time_that_has_passed(course: Course) -> None:
    course.run(5, handle(10))
    course.now_s += 3.0
    course.run(1, handle(40))

    assert course.sampler.rates(course.view)["1s"] == 10.0


def test_failed_events_count(course: Course) -> None:
    def fail(stats: Stats) -> None:
        stats.failed += 2

    course.run(3, fail)

    assert course.sampler.rates(course.view)["10s"] == 2.0


def test_failed_events_have_rates_of_their_own(course: Course) -> None:
    def fail(stats: Stats) -> None:
        stats.handled += 10
        stats.failed += 2

    course.run(15, fail)
    course.run(1, handle(10))

    assert course.sampler.failure_rates(course.view) == {"1s": 0.0, "10s": 1.8, "60s": pytest.approx(1.9, abs=0.1)}


def test_the_failed_events_of_a_type_have_a_rate(course: Course) -> None:
    def fail(failed: int) -> Callable[[Stats], None]:
        return lambda stats: stats.failed_by_type.update({("Job", "FAIL"): failed})

    course.run(1, fail(4))
    course.run(1, fail(7))

    assert course.sampler.type_rates(course.view)["Job", "FAIL"].failed_rate == 3.0


def test_the_idle_share_is_of_the_last_ten_seconds(course: Course) -> None:
    def idle(share: float) -> Callable[[Stats], None]:
        def add(stats: Stats) -> None:
            stats.idle_s += share

        return add

    course.run(30, idle(1.0))
    course.run(10, idle(0.25))

    assert course.sampler.idle_share(course.view) == 0.25


def test_the_mailbox_latency_is_the_mean_of_the_last_minute(course: Course) -> None:
    def arrive(ns: int) -> Callable[[Stats], None]:
        def add(stats: Stats) -> None:
            assert stats.mailbox_latency is not None
            stats.mailbox_latency.observe(ns)

        return add

    assert course.sampler.latency_s(course.view) is None
    course.run(100, arrive(5_000_000))
    course.run(60, arrive(1_000_000))

    assert course.sampler.latency_s(course.view) == pytest.approx(0.001, rel=0.1)
    course.run(70, handle(0))
    assert course.sampler.latency_s(course.view) is None, "no mail in the last minute"


def test_the_share_of_a_type_is_estimated_from_its_timed_events(course: Course) -> None:
    def be_slow(stats: Stats) -> None:
        stats.handled_by_type["Job", "SLOW"] = 100
        stats.handling_by_type["Job", "SLOW"] = 10, 0.05

    course.run(1, handle(0))
    course.run(1, be_slow)

    rates = course.sampler.type_rates(course.view)["Job", "SLOW"]

    assert rates.rate == 100.0
    assert rates.share == 0.5, "100 events of 5 ms in a second"


def test_curves_have_a_point_for_each_five_seconds_of_five_minutes(course: Course) -> None:
    def work(stats: Stats) -> None:
        stats.handled += 8
        stats.failed += 2
        stats.retried_by_type["Job", "FAIL"] = stats.failed // 2
        stats.idle_s += 0.75

    course.run(400, work)
    course.view.numbers.queue_size = 7
    course.run(1, handle(0))

    curves = course.sampler.curves(course.view)

    assert [len(curve) for curve in curves] == [POINTS] * 4
    assert curves.queue == [0] * (POINTS - 1) + [7]
    assert curves.rate[0] == curves.rate[-2] == 10.0
    assert curves.failing[-2] == pytest.approx(3.0, abs=0.2), "attempts count"
    assert curves.busy[-2] == 0.25


def test_a_curve_does_not_know_what_was_before_the_first_sample(course: Course) -> None:
    course.run(7, handle(5))

    curves = course.sampler.curves(course.view)

    assert curves.queue[:-2] == curves.rate[:-2] == [None] * (POINTS - 2)
    assert curves.rate[-2:] == [5.0, 5.0]


def flood(course: Course, seconds: int) -> None:
    """100 events a second, four of five of them STARTs, of which 30 are handled."""

    def post(stats: Stats) -> None:
        stats.queue_size += 70
        stats.handled += 30
        stats.handled_by_type["Job", "START"] = stats.handled

    course.view.newest = {Job.START: 40, Job.WAIT: 10}
    course.run(seconds, post)


def test_the_types_whose_queue_grows_flood_since_it_has_grown(course: Course) -> None:
    course.run(20, handle(1000))
    flood(course, 30)

    floods = course.sampler.floods(course.view)

    assert set(floods) == {("Job", "START"), ("Job", "WAIT")}
    assert floods["Job", "START"].per_s == pytest.approx(50.0)
    assert floods["Job", "WAIT"].per_s == pytest.approx(20.0)
    assert 25 <= floods["Job", "START"].for_s <= 30


def test_a_flood_ends_when_the_queue_no_longer_grows(course: Course) -> None:
    flood(course, 30)

    course.run(12, handle(0))

    assert course.sampler.floods(course.view) == {}


def test_a_queue_that_goes_up_and_down_is_no_flood(course: Course) -> None:
    course.view.newest = {Job.START: 50}
    for _ in range(20):
        course.view.numbers.queue_size = 500
        course.run(1, handle(100))
        course.view.numbers.queue_size = 900
        course.run(1, handle(100))

    assert course.sampler.floods(course.view) == {}


def test_a_busy_queue_that_swings_slowly_is_no_flood_and_one_that_grows_slowly_is(course: Course) -> None:
    def grow(by: int) -> Callable[[Stats], None]:
        def post(stats: Stats) -> None:
            stats.queue_size += by
            stats.handled += 100
            stats.handled_by_type["Job", "START"] = stats.handled

        return post

    course.view.newest = {Job.START: 50}
    course.view.numbers.queue_size = 1000
    for _ in range(4):
        course.run(15, grow(10))
        swinging = course.sampler.floods(course.view)
        course.run(15, grow(-10))
        assert swinging == {}

    course.run(60, grow(10))

    assert set(course.sampler.floods(course.view)) == {("Job", "START")}


def test_failures_have_a_rate_by_class_and_type(course: Course) -> None:
    gone, down = FailureKey("Job", "FAIL", "ValueError"), FailureKey("Job", "FAIL", "OSError")
    course.view.failing = {gone: 30, down: 1}
    course.run(1, handle(0))
    course.view.failing = {gone: 30, down: 9}
    course.run(4, handle(0))

    assert course.sampler.failing_rates(course.view) == {down: 2.0}


def test_a_dispatcher_is_not_kept_alive(course: Course) -> None:
    course.run(2, handle(1))
    course.view = View()
    gc.collect()

    course.run(1, handle(1))

    assert course.sampler.rates(course.view) == {"1s": 0.0, "10s": 0.0, "60s": 0.0}


class User:
    """An app that uses the sampler."""


def ended(shared: SharedSampler) -> bool:
    deadline = monotonic() + WAIT_S
    while shared.is_running() and monotonic() < deadline:
        os.sched_yield()
    return not shared.is_running()


def test_its_thread_runs_while_it_is_used() -> None:
    shared, one, other = SharedSampler(), User(), User()
    dispatcher = AsyncDispatcher(name="central")
    assert not shared.is_running()

    first = shared.use(one)
    assert shared.use(other) is first
    shared.release(one)
    assert shared.is_running()
    shared.release(other)

    assert ended(shared)
    assert shared.use(one) is first, "it starts anew, with the samples that it has"
    shared.release(one)
    assert ended(shared)
    assert dispatcher.name == "central"


@pytest.mark.long
def test_its_thread_ends_when_its_user_is_gone() -> None:
    shared = SharedSampler()
    user = User()
    shared.use(user)

    del user
    gc.collect()

    assert ended(shared)


def test_a_forked_child_starts_its_own() -> None:
    shared, user = SharedSampler(), User()
    sampler = shared.use(user)

    shared.after_fork()

    assert not shared.is_running()
    assert shared.use(user) is not sampler
    assert shared.is_running()
    shared.release(user)
    assert ended(shared)
