"""Several of one component on a dispatcher: each has its own handlers, timers and counts for the same Enum classes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, Flag
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import (
    AsyncDispatcher,
    DeadLetter,
    DeadLetters,
    DeadLetterType,
    Dispatcher,
    EventNotDeclaredError,
    InvalidTypeError,
    InvalidValueError,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
    UnregisteredEventTypeError,
    aio,
    register_metrics,
)
from dispatcher.testing import InlineDispatcher, ManualClock

from ..kit import TIMEOUT_S, Work
from ..kit.dispatchers import hold


class JobType(Enum):
    ADD = "add"
    FLUSH = "flush"


@dataclass
class Job:
    type: JobType
    entity: str = ""
    lock_key: str | None = None


ADD = Job(JobType.ADD, "job_1")


class Batcher:
    """A component of which a program has several."""

    def __init__(self, dispatcher: Dispatcher, **options: Any) -> None:
        self.dispatcher = dispatcher
        self.seen: list[Any] = []
        dispatcher.register(JobType, self.handle, **options)

    def handle(self, event: Job) -> int:
        self.seen.append(event)
        return len(self.seen)


@pytest.fixture(params=[AsyncDispatcher, InlineDispatcher, MultiDispatcher])
def dispatcher(request: pytest.FixtureRequest) -> Iterator[Any]:
    dispatcher = request.param(partitions=2) if request.param is MultiDispatcher else request.param()
    with dispatcher:
        yield dispatcher


def test_each_gets_the_events_that_are_posted_through_its_scope(dispatcher: Any) -> None:
    a, b, whole = (Batcher(each) for each in (dispatcher.scope("a"), dispatcher.scope("b"), dispatcher))

    assert a.dispatcher.post(ADD)
    assert b.dispatcher.post_nowait(ADD)
    assert b.dispatcher.post_later(ADD).result(TIMEOUT_S)
    assert b.dispatcher.post(ADD)
    answers = [each.dispatcher.ask(ADD).result(TIMEOUT_S) for each in (a, b, whole)]

    assert answers == [2, 4, 1]
    assert all(event is ADD for event in (*a.seen, *b.seen, *whole.seen))
    assert dispatcher.scope("a") is a.dispatcher


def test_its_events_count_as_those_of_a_class_named_after_both() -> None:
    registry = CollectorRegistry()
    with AsyncDispatcher(name="jobs") as dispatcher:
        register_metrics(dispatcher, registry)
        Batcher(dispatcher.scope("a"))
        dispatcher.scope("a").ask(ADD).result(TIMEOUT_S)
        with pytest.raises(UnregisteredEventTypeError, match=r"b/JobType\.ADD"):
            dispatcher.scope("b").ask(ADD).result(TIMEOUT_S)

    labels = {"dispatcher": "jobs", "event_class": "a/JobType", "event_type": "ADD"}
    assert registry.get_sample_value("dispatcher_events_handled_total", labels) == 1


def test_a_handler_is_removed_from_its_own_scope_only(dispatcher: Any) -> None:
    a, b = Batcher(dispatcher.scope("a")), Batcher(dispatcher.scope("b"))

    assert a.dispatcher.unregister(JobType, a.handle)
    assert not a.dispatcher.unregister(JobType, a.handle)

    assert b.dispatcher.ask(ADD).result(TIMEOUT_S) == 1


def test_functions_of_members_and_on_error_get_the_event_itself() -> None:
    failed: list[Any] = []
    with AsyncDispatcher() as dispatcher:
        scope = dispatcher.scope("a")

        @scope.on(JobType.ADD, on_error=lambda event, error: failed.append((event, str(error))) or "continue")
        def add(event: Job) -> None:
            raise ValueError(event.entity)

        @scope.on(JobType.FLUSH)
        def flush(event: Job) -> JobType:
            return event.type

        assert scope.ask(Job(JobType.FLUSH)).result(TIMEOUT_S) is JobType.FLUSH
        with pytest.raises(ValueError, match="job_1"):
            scope.ask(ADD).result(TIMEOUT_S)

    assert failed == [(ADD, "job_1")]


@pytest.mark.parametrize("is_declared", [False, True])
def test_coroutines_keys_and_costs_get_the_event_itself_and_keep_its_order(is_declared: bool) -> None:
    costed: list[Any] = []

    async def use() -> list[str]:
        seen: list[str] = []

        async def handle(event: Job) -> str:
            seen.append(f"begins {event.entity}")
            await asyncio.sleep(0)
            seen.append(f"ends {event.entity}")
            return event.entity

        def cost(event: Job) -> float:
            costed.append(type(event))
            return 1.0

        async with asyncio.timeout(TIMEOUT_S):
            dispatcher = AsyncDispatcher(loop=asyncio.get_running_loop())
            scope = dispatcher.scope("a")
            declared = aio.AsyncioHandler(handle, key=lambda job: job.entity, rate=aio.RateLimit(1000, cost=cost))
            scope.register(JobType, declared if is_declared else handle)
            dispatcher.start()
            assert await aio.post(scope, Job(JobType.ADD, "x", lock_key="k"))
            assert await aio.ask(scope, Job(JobType.ADD, "x", lock_key="k")) == "x"
            await aio.stop(dispatcher)
        return seen

    assert asyncio.run(use()) == ["begins x", "ends x"] * 2
    assert costed == [Job] * (2 * is_declared)


def test_events_of_a_scope_supersede_its_own_only(gate: Any) -> None:
    with AsyncDispatcher() as dispatcher:
        dispatcher.register(Work, gate)
        a, b = (Batcher(dispatcher.scope(name), coalesce_by=lambda job: job.entity) for name in "ab")
        hold(dispatcher, gate)
        older, newer, other = Job(JobType.ADD, "x"), Job(JobType.ADD, "x"), Job(JobType.ADD, "x")
        assert [a.dispatcher.post(older), a.dispatcher.post(newer), b.dispatcher.post(other)] == [True] * 3
        gate.opened.set()
        assert dispatcher.await_drained(TIMEOUT_S)

    assert [id(event) for event in a.seen] == [id(newer)]
    assert [id(event) for event in b.seen] == [id(other)]


def test_keys_of_timers_are_the_scopes_own() -> None:
    clock = ManualClock()
    with AsyncDispatcher(time_service=clock) as dispatcher:
        a, b = (Batcher(dispatcher.scope(name)) for name in "ab")
        timer = a.dispatcher.post_after(1, ADD, key="job_1")
        a.dispatcher.post_every(10, lambda: Job(JobType.FLUSH), key="flush")
        b.dispatcher.post_at(2, ADD, key="job_1")

        assert (timer.key, timer.event) == ("job_1", ADD)
        assert list(a.dispatcher.scheduled()) == ["job_1", "flush"]
        assert list(a.dispatcher.scheduled("f")) == ["flush"]
        assert list(dispatcher.scheduled()) == ["a/job_1", "b/job_1", "a/flush"]
        assert b.dispatcher.cancel("job_1")
        assert not b.dispatcher.cancel("flush")
        clock.advance(10_000)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert (a.seen, b.seen) == ([ADD, Job(JobType.FLUSH)], [])


def journaled(folder: Path) -> AsyncDispatcher:
    return AsyncDispatcher(name="jobs", journal=JournalWriter(folder, JournalConfig(write_ahead=True)))


def test_events_of_an_earlier_run_come_back_to_their_scope(tmp_path: Path) -> None:
    first = journaled(tmp_path)
    Batcher(first.scope("a"), events=Job)
    first.init()
    assert first.scope("a").post(ADD)
    with pytest.raises(EventNotDeclaredError, match=r"scope\('b'\)\.register\(JobType, handler, events=Job\)"):
        first.scope("b").post(ADD)
    first.core.journal.close()  # type: ignore[union-attr]

    second = journaled(tmp_path)
    a, b = (Batcher(second.scope(name), events=Job) for name in "ab")
    with second:
        assert second.await_drained(TIMEOUT_S)

    assert (a.seen, b.seen) == ([ADD], [])


def test_a_dead_letter_has_the_event_and_goes_back_to_its_scope(tmp_path: Path) -> None:
    letters: list[DeadLetter] = []

    def fail(event: Job) -> None:
        raise ValueError("no")

    for to in (letters.append, tmp_path):
        with AsyncDispatcher(name="jobs", dead_letters=to) as dispatcher:
            dispatcher.scope("a").register(JobType, fail, events=Job)
            dispatcher.scope("a").post(ADD)
    with AsyncDispatcher(name="jobs") as dispatcher:
        a = Batcher(dispatcher.scope("a"), events=Job)
        DeadLetters(tmp_path).redeliver(dispatcher)

    assert [letter.event for letter in letters] == [ADD]
    assert a.seen == [ADD]


def test_a_dead_letter_that_fails_in_a_scope_is_not_put_there_again() -> None:
    letters: list[DeadLetter] = []

    def fail(event: DeadLetter) -> None:
        raise ValueError("no")

    with AsyncDispatcher(name="mails", dead_letters=letters.append) as dispatcher:
        dispatcher.scope("a").register(DeadLetterType, fail)
        dispatcher.scope("a").post(DeadLetter("jobs", ADD, ValueError("no"), 1, 0.0))

    assert letters == []


def test_a_scope_within_a_scope_has_both_names(dispatcher: Any) -> None:
    inner = dispatcher.scope("a").scope("b")
    batcher = Batcher(inner)

    assert inner.ask(ADD).result(TIMEOUT_S) == 1
    assert (inner.name, batcher.seen) == (f"{dispatcher.name}/a/b", [ADD])


class Right(Flag):
    READ = 1
    WRITE = 2


@pytest.mark.parametrize("right", [Right.READ | Right.WRITE, Right(0)])
def test_a_function_for_several_flags_at_once_is_refused_by_name(right: Right) -> None:
    """It was a KeyError of a number."""
    with pytest.raises(InvalidValueError, match=r"jobs/a: Right\..* a scope has the events of single flags alone"):
        AsyncDispatcher(name="jobs").scope("a").on(right)(print)


@pytest.mark.parametrize(
    ("name", "error"), [("", InvalidValueError), ("a/b", InvalidValueError), (1, InvalidTypeError)]
)
def test_a_name_that_cannot_be_a_scopes_is_refused(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="a scope's name"):
        AsyncDispatcher().scope(name)
