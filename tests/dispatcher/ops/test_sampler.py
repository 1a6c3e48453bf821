"""The sampler of rates: its windows, and the thread that serves all doors of the process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from dispatcher.ops.sampler import POINTS, Sampler, SharedSampler
from dispatcher.util.histogram import Histogram
from dispatcher.view import FailureKey, QueueCounts

from ...kit import until
from ...kit.interrupting import INTERRUPTED_THREADS, Interrupt
from ...kit.scenarios import play
from .client import WAIT_S, Job, hanging

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


class SamplerStage:
    """A sampler and its clock. `run 9 handled=10` is nine seconds, in each of which ten events are handled.

    Of the events that are handled, those of `START` are counted by type as well; `timed` of them took 5 ms each.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.view: Any = View()
        self.sampler = Sampler(lambda: [self.view], lambda: self.now_s)

    def play(self, verb: str, *words: str) -> None:
        numbers = {name: float(number) for name, _, number in (each.partition("=") for each in words) if number}
        match verb:
            case "run":
                for _ in range(int(words[0])):
                    self._second(**numbers)
            case "late":
                self.now_s += float(words[0])
            case "queued":
                self.view.numbers.queue_size = int(words[0])
            case "newest":
                self.view.newest = {Job[name]: int(number) for name, number in numbers.items()}
            case "errors":
                self.view.failing = {FailureKey("Job", "FAIL", name): int(count) for name, count in numbers.items()}
            case "another":
                self.view = View()
                gc.collect()

    def _second(
        self,
        handled: float = 0,
        failed: float = 0,
        retried: float = 0,
        grows: float = 0,
        idle: float = 0,
        timed: float = 0,
        mail_ns: float = 0,
    ) -> None:
        self.now_s += 1.0
        stats = self.view.numbers
        stats.handled += int(handled)
        stats.failed += int(failed)
        stats.queue_size += int(grows)
        stats.idle_s += idle
        stats.handled_by_type["Job", "START"] = stats.handled
        stats.failed_by_type["Job", "START"] = stats.failed
        stats.retried_by_type["Job", "START"] = stats.retried_by_type.get(("Job", "START"), 0) + int(retried)
        was_timed = stats.handling_by_type.get(("Job", "START"), (0, 0.0))[0] + int(timed)
        stats.handling_by_type["Job", "START"] = was_timed, was_timed * 0.005
        if mail_ns:
            stats.mailbox_latency.observe(int(mail_ns))
        self.sampler.sample()

    def look(self, what: str) -> Iterable[object]:
        sampler, view = self.sampler, self.view
        found: dict[str, Any] = {
            "rates": lambda: [f"{rate:.1f}" for rate in sampler.rates(view).values()],
            "failure_rates": lambda: [f"{rate:.1f}" for rate in sampler.failure_rates(view).values()],
            "type": lambda: [f"{each:.1f}" for found in sampler.type_rates(view).values() for each in found],
            "idle": lambda: [sampler.idle_share(view)],
            "mail_ms": lambda: [None if (found := sampler.latency_s(view)) is None else f"{found * 1000:.1f}"],
            "errors": lambda: [f"{key[2]}={rate}" for key, rate in sampler.failing_rates(view).items()],
            "floods": lambda: [f"{key[1]}={flood.per_s:.0f}" for key, flood in sorted(sampler.floods(view).items())],
            "since_s": lambda: [f"{flood.for_s:.0f}" for _, flood in sorted(sampler.floods(view).items())],
        }
        return found[what]() if what in found else getattr(sampler.curves(view), what)[-3:]


SCENARIOS = {
    "each window has its own rate": "run 61 handled=10 | run 9 | run 1 handled=100 -> rates 100.0 10.0 10.0",
    "a sampler that is late counts the time that has passed": "run 5 handled=10 | late 3 | run 1 handled=40 -> rates "
    "10.0 10.0 10.0",
    "failed events count": "run 3 failed=2 -> rates 2.0 2.0 2.0",
    "failed events have rates of their own": "run 15 handled=10 failed=2 | run 1 handled=10 -> failure_rates 0.0 1.8 "
    "1.9",
    "a type has its rate, its rate of failures, and its share of the time, estimated from its timed events": "run 1 | "
    "run 1 handled=100 failed=3 timed=10 -> type 103.0 3.0 0.5",
    "the idle share is of the last ten seconds": "run 30 idle=1 | run 10 idle=0.25 -> idle 0.25",
    "the latency of the mailbox is the mean of the last minute": "run 1 -> mail_ms None | run 100 mail_ns=5000000 | "
    "run 60 mail_ns=1000000 -> mail_ms 1.0 | run 70 -> mail_ms None",
    "with one sample, nothing is known": "run 5 handled=9 | another | run 1 handled=9 -> rates 0.0 0.0 0.0 ; idle "
    "None ; type",
    "a curve does not know what was before the first sample": "run 7 handled=5 -> rate None 5.0 5.0 ; queue None 0 0",
    "the last point of a curve is of the seconds since the one before, and attempts count as failing": "run 400 "
    "handled=8 failed=2 retried=1 idle=0.75 | queued 7 | run 1 -> queue 0 0 7 ; rate 10.0 10.0 5.0 ; failing 3.0 3.0 "
    "1.5 ; busy 0.25 0.25 0.625",
    "the types whose queue grows flood since it has grown": "run 20 handled=1000 | newest START=40 WAIT=10 | run 30 "
    "grows=70 handled=30 -> floods START=50 WAIT=20 ; since_s 28 28",
    "a flood ends when the queue no longer grows": "newest START=40 WAIT=10 | run 30 grows=70 handled=30 -> floods "
    "START=50 WAIT=20 | run 12 -> floods",
    "a queue that goes up and down is no flood": "newest START=50 | "
    + " | ".join(["queued 500 | run 1 handled=100 | queued 900 | run 1 handled=100"] * 20)
    + " -> floods",
    "a busy queue that swings slowly is no flood, and one that grows slowly is": "newest START=50 | queued 1000 | "
    + " | ".join(["run 15 grows=10 handled=100 -> floods | run 15 grows=-10 handled=100"] * 4)
    + " | run 60 grows=10 handled=100 -> floods START=10",
    "failures have a rate by class of error": "errors ValueError=30 OSError=1 | run 1 | errors ValueError=30 "
    "OSError=9 | run 4 -> errors OSError=2.0",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_the_sampler_says(script: str) -> None:
    play(SamplerStage(), script)


def test_curves_have_a_point_for_each_five_seconds_of_five_minutes() -> None:
    stage = SamplerStage()
    play(stage, "run 400 handled=10")

    assert [len(curve) for curve in stage.sampler.curves(stage.view)] == [POINTS] * 4


def test_rates_and_shares_come_from_the_sampler() -> None:
    now_s = 100.0
    sampler = Sampler(clock_s=lambda: now_s)
    with hanging("sampled") as found:
        view = found.dispatcher.view
        sampler.sample()
        for _ in range(30):
            found.post(Job.START)
        assert found.dispatcher.await_drained(WAIT_S)
        now_s = 101.0
        sampler.sample()
        now_s = 110.0
        sampler.sample()

        assert sampler.rates(view) == {"1s": 0.0, "10s": 3.0, "60s": 3.0}
        assert sampler.type_rates(view)["Job", "START"].rate == 3.0
        assert 0 <= (sampler.idle_share(view) or 0.0) <= 1


class User:
    """An app that uses the sampler."""


def await_end(shared: SharedSampler) -> None:
    until(lambda: not shared.is_running(), "the end of its thread")


def test_its_thread_runs_while_it_is_used() -> None:
    shared, one, other = SharedSampler(), User(), User()
    assert not shared.is_running()

    first = shared.use(one)
    assert shared.use(other) is first
    shared.release(one)
    assert shared.is_running()
    shared.release(other)

    await_end(shared)
    assert shared.use(one) is first, "it starts anew, with the samples that it has"
    shared.release(one)
    await_end(shared)


@pytest.mark.long
def test_its_thread_ends_when_its_user_is_gone() -> None:
    shared = SharedSampler()
    user = User()
    shared.use(user)

    del user
    gc.collect()

    await_end(shared)


def test_a_forked_child_starts_its_own() -> None:
    shared, user = SharedSampler(), User()
    sampler = shared.use(user)

    shared.after_fork()

    assert not shared.is_running()
    assert shared.use(user) is not sampler
    assert shared.is_running()
    shared.release(user)
    await_end(shared)


@pytest.mark.parametrize("interrupted", INTERRUPTED_THREADS)
def test_the_next_user_starts_the_thread_if_its_start_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, interrupted: type[threading.Thread]
) -> None:
    """The first thread may already run when its start is interrupted. It must not sample beside the second one."""
    shared, user = SharedSampler(), User()

    before = threading.enumerate()  # another test's sampler may end meanwhile

    def samplers() -> int:
        return [each.name for each in threading.enumerate() if each not in before].count("ops-sampler")

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", interrupted)
        with pytest.raises(Interrupt):
            shared.use(user)
    until(lambda: not samplers(), "the interrupted one ends")
    assert not shared.is_running()

    shared.use(user)

    assert samplers() == 1
    shared.release(user)
    await_end(shared)
