"""`AsyncDispatcher(carry=...)`: context variables that come back with a durable event; log lines of failures.

A copy of the folder is what a kill -9 leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DeadLetters,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
    PartitionedJournal,
    Retry,
    aio,
)
from dispatcher.journal import recover
from dispatcher.mailbox import ManualClock

from ..kit import TIMEOUT_S, Gate
from ..kit.dispatchers import hold
from ..kit.journals import Job, Posted, after_a_crash

REQUEST: ContextVar[str] = ContextVar("event", default="-")  # a name that the journal's lines have as well
TRACE: ContextVar[str] = ContextVar("trace", default="-")
OTHER: ContextVar[str] = ContextVar("other", default="-")

NOON_MS = 1_800_000_000_000


def within(action: Callable[[], Any], request: Any = "request 7", trace: Any = 'trace "7",\n"event":') -> Any:
    def act() -> Any:
        REQUEST.set(request)
        TRACE.set(trace)
        OTHER.set("not carried")
        return action()

    return copy_context().run(act)


def job(number: int) -> Posted:
    return Posted(Job.STARTED, number)


Seen = list[tuple[int, str, str, str]]


@contextmanager
def running(journal: Path, handle: Callable[[Any], Any], **options: Any) -> Iterator[AsyncDispatcher]:
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    context, on_error = options.pop("context", True), options.pop("on_error", "continue")
    dispatcher = AsyncDispatcher(journal=writer, carry=options.pop("carry", (REQUEST, TRACE)), **options)
    dispatcher.register(Job, handle, events=Posted, context=context, on_error=on_error)
    with dispatcher:
        yield dispatcher


def noting(seen: Seen) -> Callable[[Any], None]:
    return lambda event: seen.append((event.number, REQUEST.get(), TRACE.get(), OTHER.get()))


def seen_from(crashed: Path, **options: Any) -> Seen:
    """With a loop among the options, what a coroutine sees."""
    seen: Seen = []
    note = noting(seen)

    async def note_later(event: Posted) -> None:
        await asyncio.sleep(0)
        note(event)

    with running(crashed, note_later if "loop" in options else note, **options) as dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)
    return seen


@pytest.fixture
def crash(tmp_path: Path, gate: Gate) -> Callable[..., Path]:
    """Runs `act` on a dispatcher whose handler is held, by default a post, and copies what a crash then leaves."""

    def crash(act: Callable[[Any], Any] = lambda each: within(lambda: each.post(job(1))), **options: Any) -> Path:
        with running(tmp_path / "journal", gate.handle, **options) as dispatcher:
            act(dispatcher)
            crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
            gate.opened.set()
        return crashed

    return crash


CARRIED = ("request 7", 'trace "7",\n"event":', "-")


@pytest.mark.parametrize("is_async", [False, True])
def test_values_come_back_with_an_event_after_a_crash_however_it_was_posted(
    crash: Callable[..., Path], gate: Gate, loop: asyncio.AbstractEventLoop, is_async: bool
) -> None:
    def post(dispatcher: AsyncDispatcher) -> None:
        hold(dispatcher, gate, job(0))
        within(lambda: dispatcher.post(job(1)))
        within(lambda: dispatcher.post_nowait(job(2)))
        within(lambda: dispatcher.post_later(job(3)).result(TIMEOUT_S))
        within(lambda: dispatcher.ask(job(4)))
        within(lambda: asyncio.run(aio.post(dispatcher, job(5))))

    options = {"loop": loop} if is_async else {}
    assert seen_from(crash(post), **options) == [(0, "-", "-", "-"), *((number, *CARRIED) for number in range(1, 6))]


def test_a_scheduled_post_carries_them_over_a_restart(tmp_path: Path) -> None:
    clock, seen = ManualClock(NOON_MS), Seen()
    with running(tmp_path / "journal", print, time_service=clock) as dispatcher:
        within(lambda: dispatcher.post_after(1, job(1)))
        within(lambda: dispatcher.post_at(NOON_MS / 1000 + 1, job(2), key="two"))
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")

    with running(crashed, noting(seen), time_service=clock) as dispatcher:
        again = after_a_crash(crashed, tmp_path / "again")  # they stay in the journal as they were
        clock.advance(1000)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert sorted(seen) == [(1, *CARRIED), (2, *CARRIED)]
    assert sorted(seen_from(again, time_service=clock)) == sorted(seen)


def test_the_firing_of_a_key_carries_them(crash: Callable[..., Path], gate: Gate) -> None:
    clock = ManualClock(NOON_MS)

    def fire(dispatcher: AsyncDispatcher) -> None:
        within(lambda: dispatcher.post_every(10, job(1), key="rhythm"))
        clock.advance(10_000)
        assert gate.entered.wait(TIMEOUT_S)

    assert seen_from(crash(fire, time_service=clock), time_service=clock) == [(1, *CARRIED)]


def test_attempts_carry_them_over_restarts(tmp_path: Path) -> None:
    clock, retry, attempts = ManualClock(NOON_MS), Retry(attempts=5, delay_s=10, jitter=0), list[str]()

    def fail(event: Posted) -> None:
        attempts.append(REQUEST.get())
        raise OSError(event.number)

    path = tmp_path / "0"
    for run in range(3):
        with running(path, fail, on_error=retry, time_service=clock) as dispatcher:
            if not run:
                within(lambda: dispatcher.post(job(1)))
            dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)
            clock.advance(100_000)
            dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)
            path = after_a_crash(path, tmp_path / f"{run + 1}")
            dispatcher.set_drain_events_on_stop(False)

    assert len(attempts) > 2
    assert set(attempts) == {"request 7"}


def test_posts_of_a_handler_carry_them_on(tmp_path: Path) -> None:
    gate, crashed = Gate(), tmp_path / "crashed"

    def handle(event: Posted) -> None:
        if event.number == 1:
            dispatcher.post(job(2))
        else:
            gate.handle(event)

    with running(tmp_path / "journal", handle) as dispatcher:
        within(lambda: dispatcher.post(job(1)))
        assert gate.entered.wait(TIMEOUT_S)
        after_a_crash(tmp_path / "journal", crashed)
        gate.opened.set()

    assert (2, *CARRIED) in seen_from(crashed)


def test_a_dead_letter_comes_back_with_them(tmp_path: Path) -> None:
    seen: Seen = []

    def fail_first(event: Posted) -> None:
        noting(seen)(event)
        if len(seen) == 1:
            raise OSError(event.number)

    with running(tmp_path / "journal", fail_first, dead_letters=tmp_path / "letters") as dispatcher:
        within(lambda: dispatcher.post(job(1)))
        assert dispatcher.await_drained(TIMEOUT_S)
        assert DeadLetters(tmp_path / "letters").redeliver(dispatcher).posted == ("1",)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen[1] == (1, *CARRIED)


def test_partitions_carry_them_to_other_partitions(tmp_path: Path, gate: Gate) -> None:
    def make(path: Path, partitions: int, handle: Any) -> MultiDispatcher:
        journal = PartitionedJournal(path, JournalConfig(write_ahead=True))
        dispatcher = MultiDispatcher(partitions=partitions, journal=journal, carry=[REQUEST])
        dispatcher.register(Job, handle, events=Posted, context=True)
        return dispatcher

    with make(tmp_path / "journal", 1, gate.handle) as dispatcher:
        within(lambda: dispatcher.post(job(1)))
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")
        gate.opened.set()
    seen: Seen = []
    with make(crashed, 3, noting(seen)) as dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)

    assert seen == [(1, "request 7", "-", "-")]


def test_without_context_nothing_is_stored(crash: Callable[..., Path]) -> None:
    [line] = recover(crash(context=False)).accepted

    assert b"request 7" not in line.line


def test_a_dispatcher_that_does_not_carry_reads_the_events_of_one_that_does(crash: Callable[..., Path]) -> None:
    assert seen_from(crash(), carry=()) == [(1, "-", "-", "-")]


@pytest.mark.parametrize(("value", "what"), [("x" * 1025, "a str of 1,025 characters"), (7, "of the type int")])
def test_a_value_that_is_no_short_str_is_left_out_and_told_of_once(
    crash: Callable[..., Path], caplog: pytest.LogCaptureFixture, value: Any, what: str
) -> None:
    def post(dispatcher: AsyncDispatcher) -> None:
        for number in (1, 2):
            assert within(lambda number=number: dispatcher.post(job(number)), trace=value)

    assert seen_from(crash(post)) == [(1, "request 7", "-", "-"), (2, "request 7", "-", "-")]
    assert [record.getMessage() for record in caplog.records if "carry" in record.getMessage()] == [
        f"AsyncDispatcher: the journal doesn't carry trace, which is {what}; it carries a str of up to 1024 characters"
    ]


def test_what_cannot_be_carried_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="carry is a list of ContextVars, and has 'request'"):
        AsyncDispatcher(carry=["request"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="two variables named event"):
        AsyncDispatcher(carry=[REQUEST, ContextVar("event")])
    with pytest.raises(ValueError, match="17 variables, and 16 are the maximum"):
        AsyncDispatcher(carry=[ContextVar(str(number)) for number in range(17)])


# -- log lines ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The level of each line of the log, and REQUEST where it was written."""
    lines: list[tuple[str, str]] = []
    log = logging.getLogger("dispatcher.async_dispatcher")
    monkeypatch.setattr(log, "handle", lambda record: lines.append((record.levelname, REQUEST.get())))
    return lines


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_log_lines_of_failures_and_what_they_call_see_the_context_of_the_post(
    lines: list[tuple[str, str]], loop: asyncio.AbstractEventLoop, kind: str
) -> None:
    died: list[str] = []
    asked: list[str] = []

    def decide(event: Any, error: BaseException) -> Any:
        asked.append(REQUEST.get())
        return Retry(attempts=2, delay_s=0, then="dead_letter")

    def fail(event: Any) -> None:
        raise OSError(event.number)

    async def fail_later(event: Any) -> None:
        await asyncio.sleep(0)
        fail(event)

    dispatcher = AsyncDispatcher(loop=loop, dead_letters=lambda letter: died.append(REQUEST.get()))
    dispatcher.register(Job, fail if kind == "plain" else fail_later, context=True, on_error=decide)
    with dispatcher:
        within(lambda: dispatcher.post(job(1)))
        assert dispatcher.await_drained(TIMEOUT_S)

    assert lines == [("WARNING", "request 7"), ("ERROR", "request 7")]
    assert asked == ["request 7", "request 7"]
    assert died == ["request 7"]


def test_without_context_log_lines_see_none(lines: list[tuple[str, str]]) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Job, lambda event: 1 / 0)
    with dispatcher:
        within(lambda: dispatcher.post(job(1)))

    assert lines == [("ERROR", "-")]
