"""Asking for an event: its future has what the handler returns, or why nothing will come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AskError,
    AsyncDispatcher,
    DispatcherConfig,
    Event,
    EventNotDeclaredError,
    EventRefusedError,
    JournalError,
    MultiDispatcher,
    aio,
)
from dispatcher.journal import recover

from ...kit import TIMEOUT_S, Gate, Numbered, Other, Work, assert_accounts_balance, until
from ...kit.coroutines import Keyed
from ...kit.journals import Job, Posted, after_a_crash, no_room
from ..stage import Rows, perform, scenarios

Make = Callable[..., AsyncDispatcher]


def words(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


AMONG_POSTS = " | ".join(f"post {number} | ask {number + 1}" for number in range(1, 200, 2))
SCENARIOS: Rows = {
    "an ask that would wait for the start raises, and a stop ends the others": (
        "ask 1 2 -> answers ... QueueFullError | stop -> answers EventDiscardedError:stop QueueFullError",
        {"is_started": False, "queue_capacity": 1},
    ),
} | {
    f"asks among posts are answered and keep their order, with times of {which} events": (
        f"hold 0 | {AMONG_POSTS} | release -> answers {words(range(2, 201, 2))} ; seen {words(range(201))}",
        {"measure_times": which},
    )
    for which in ("all", "sampled", "none")
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(script: str, options: dict[str, Any]) -> None:
    perform(script, **options)


def test_the_error_of_the_handler_is_the_futures_and_the_event_has_failed(make: Make) -> None:
    error = StopIteration("no")  # no coroutine could raise it, and no generator: a future can

    def fail(event: Numbered) -> None:
        raise error

    dispatcher = make(handler=fail)

    assert dispatcher.ask(Numbered()).exception(TIMEOUT_S) is error
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 1


def test_a_handler_that_asks_its_own_dispatcher_gets_an_error_at_once(make: Make) -> None:
    dispatcher = make()
    dispatcher.register(Work, lambda event: dispatcher.ask(Numbered(type=Work.MORE)))

    with pytest.raises(AskError, match="a handler cannot ask its own dispatcher"):
        dispatcher.ask(Numbered()).result(TIMEOUT_S)


def test_a_handler_that_waits_for_an_ask_of_its_own_dispatcher_gets_an_error_at_once(make: Make) -> None:
    dispatcher = make()
    asks: list[Future[Any]] = []
    are_there = threading.Event()

    def wait_for_the_other(event: Numbered) -> Any:
        assert are_there.wait(TIMEOUT_S)
        return asks[1].result(TIMEOUT_S)

    dispatcher.register(Work, wait_for_the_other)
    dispatcher.register(Other, print)
    asks += [dispatcher.ask(Numbered()), dispatcher.ask(Numbered(type=Other.DO))]  # type: ignore[arg-type]
    are_there.set()

    with pytest.raises(AskError, match="the handler thread cannot wait"):
        asks[0].result(TIMEOUT_S)


def test_room_of_withdrawn_events_is_not_taken_again_by_one_place_that_comes_up() -> None:
    """Each place that left the queue paid for the room of all places of withdrawn events behind it."""
    entered, leave = threading.Semaphore(0), threading.Semaphore(0)

    def hold(event: Numbered) -> None:
        entered.release()
        assert leave.acquire(timeout=TIMEOUT_S)

    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=3, queue_full_policy="reject"))
    dispatcher.register(Work, hold)
    with dispatcher:
        for number in range(3):
            assert dispatcher.post(Numbered(number))
        assert entered.acquire(timeout=TIMEOUT_S)
        for number in (3, 4):
            assert dispatcher.ask(Numbered(number)).cancel()
        leave.release()
        assert entered.acquire(timeout=TIMEOUT_S)

        assert (dispatcher.queue_size(), dispatcher.post(Numbered(5))) == (1, True)
        leave.release(3)


def test_a_timeout_withdraws_an_event_that_is_still_queued(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    in_hand, queued = dispatcher.ask(Numbered(1)), dispatcher.ask(Numbered(2))
    assert gate.entered.wait(TIMEOUT_S)

    with pytest.raises(TimeoutError):
        in_hand.result(0)
    with pytest.raises(TimeoutError):
        queued.result(0)
    gate.opened.set()

    assert in_hand.result(TIMEOUT_S) is None
    assert queued.cancelled()
    assert wait([queued], TIMEOUT_S).done == {queued}
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [1]
    assert dispatcher.stats().discarded_by_reason == {"withdrawn": 1}
    assert_accounts_balance(dispatcher, 2)


def test_a_timeout_error_of_the_handler_is_told_from_a_timeout_of_the_wait(make: Make) -> None:
    def fail(event: Numbered) -> None:
        raise TimeoutError("the service does not answer")

    ask = make(handler=fail).ask(Numbered())

    with pytest.raises(TimeoutError, match="the service"):
        ask.result(TIMEOUT_S)
    assert not ask.cancelled()


def test_a_callback_that_raises_harms_nothing(make: Make, gate: Gate) -> None:
    def fail(_: Future[Any]) -> None:
        raise SystemExit("in a callback")

    dispatcher = make(handler=gate)
    asks = [dispatcher.ask(Numbered(number)) for number in range(2)]
    asks[0].add_done_callback(fail)
    gate.opened.set()

    assert [ask.result(TIMEOUT_S) for ask in asks] == [None, None]


def test_a_partition_is_asked_for_the_events_of_its_keys() -> None:
    with MultiDispatcher(partitions=3) as dispatcher:
        dispatcher.register(Work, lambda event: threading.current_thread().name)
        names = {dispatcher.ask(Keyed(0, key)).result(TIMEOUT_S) for key in range(3)}

    assert names == {f"MultiDispatcher-{number}" for number in range(3)}


class TestInWriteAheadMode:
    @pytest.mark.parametrize("durability", ["none", "sync"])
    def test_an_answer_comes_once_the_row_is_in_the_journal(
        self, start: Make, journal: Path, tmp_path: Path, durability: Any
    ) -> None:
        dispatcher = start(lambda event: event.number, durability=durability)

        for number in range(20):
            assert dispatcher.ask(Posted(Job.STARTED, number)).result(TIMEOUT_S) == number
            assert not recover(after_a_crash(journal, tmp_path / f"crashed-{number}")).accepted

    @pytest.mark.parametrize("durability", ["none", "sync"])
    @pytest.mark.parametrize("way", ["cancel", "cancel at once", "timeout", "aio"])
    def test_a_withdrawn_event_does_not_come_again(
        self, start: Make, journal: Path, tmp_path: Path, gate: Gate, way: str, durability: Any
    ) -> None:
        """It did after a crash, until the next row was written."""
        dispatcher = start(gate.handle, durability=durability)
        dispatcher.post(Posted(Job.STARTED, 1))
        assert gate.entered.wait(TIMEOUT_S)

        if way == "aio":
            with pytest.raises(TimeoutError):
                asyncio.run(aio.ask(dispatcher, Posted(Job.STARTED, 2), timeout=0.001))
        else:
            asked = dispatcher.ask(Posted(Job.STARTED, 2))
            if way != "cancel at once":
                until(lambda: dispatcher.queue_size() == 1, "the event is queued")
            if way == "timeout":
                with pytest.raises(TimeoutError):
                    asked.result(0)
            else:
                assert asked.cancel()
        crashed = after_a_crash(journal, tmp_path / "crashed")
        gate.opened.set()
        dispatcher.stop()

        assert [accepted.seq for accepted in recover(crashed).accepted] == [1]
        assert not recover(journal).accepted
        assert [event.number for event in gate.events] == [1]

    def test_a_withdrawn_event_does_not_come_again_though_a_stop_has_discarded_it(
        self, start: Make, journal: Path, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        dispatcher = start(gate.handle)
        dispatcher.set_drain_events_on_stop(False)
        dispatcher.post(Posted(Job.STARTED, 1))
        assert gate.entered.wait(TIMEOUT_S)
        asked = [dispatcher.ask(Posted(Job.STARTED, number)) for number in (2, 3)]
        until(lambda: dispatcher.queue_size() == 2, "the events are queued")

        assert asked[0].cancel()
        stop = threading.Thread(target=dispatcher.stop)
        stop.start()
        until(lambda: not dispatcher.queue_size(), "the stop has discarded them")
        gate.opened.set()
        stop.join(TIMEOUT_S)

        assert [accepted.seq for accepted in recover(journal).accepted] == [3]
        assert "1 Job.STARTED; the next start handles those that the journal has" in caplog.text

    def test_an_event_that_is_withdrawn_on_its_way_into_the_log_leaves_it(
        self, start: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dispatcher = start(gate.handle, durability="interval")
        writer = dispatcher.core.journal
        assert writer is not None
        dispatcher.post(Posted(Job.STARTED, 1))
        assert gate.entered.wait(TIMEOUT_S)
        settled: list[int] = []
        monkeypatch.setattr(writer, "settle_now", settled.append)
        written, queued, append = threading.Event(), threading.Event(), writer.log.append_accepted

        def append_and_wait(lines: Any) -> int:
            seq = append(lines)
            written.set()
            assert queued.wait(TIMEOUT_S)
            return seq

        monkeypatch.setattr(writer.log, "append_accepted", append_and_wait)
        asked = dispatcher.ask(Posted(Job.STARTED, 2))
        assert written.wait(TIMEOUT_S)

        cancelled: list[bool] = []
        cancelling = threading.Thread(target=lambda: cancelled.append(asked.cancel()))
        cancelling.start()
        queued.set()
        cancelling.join(TIMEOUT_S)
        gate.opened.set()

        assert cancelled == [True]
        assert settled == [2]

    def test_a_disk_that_fails_fails_the_ask_and_an_undeclared_event_the_call(
        self, start: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fill_the_disk(event: Posted) -> None:
            assert dispatcher.core.journal is not None
            monkeypatch.setattr(dispatcher.core.journal.log, "append_rows", no_room)

        dispatcher = start(fill_the_disk, failure_policy="continue")
        with pytest.raises(EventNotDeclaredError):
            dispatcher.ask(Event(Job.STARTED))

        with pytest.raises(JournalError):
            dispatcher.ask(Posted(Job.STARTED, 1)).result(TIMEOUT_S)
        with pytest.raises(EventRefusedError, match="journal"):
            dispatcher.ask(Posted(Job.STARTED, 2)).result(TIMEOUT_S)


@asynccontextmanager
async def of_the_loop(handle: Any, config: DispatcherConfig | None = None) -> AsyncIterator[AsyncDispatcher]:
    """A dispatcher whose coroutines run on the loop of the caller."""
    dispatcher = AsyncDispatcher(config, loop=asyncio.get_running_loop())
    dispatcher.register(Work, handle)
    dispatcher.start()
    yield dispatcher
    await aio.stop(dispatcher)


class TestFromAnEventLoop:
    def test_coroutines_are_asked_at_the_same_time(self) -> None:
        async def main() -> None:
            running, all_run = 0, asyncio.Event()

            async def handle(event: Keyed) -> Any:
                nonlocal running
                running += 1
                if running == 3:
                    all_run.set()
                await all_run.wait()
                if event.lock_key == 1:
                    raise ValueError("one")
                return event.lock_key

            async with of_the_loop(handle) as dispatcher:
                asks = [aio.ask(dispatcher, Keyed(key, key)) for key in range(3)]
                answers = await asyncio.gather(*asks, return_exceptions=True)

            assert (answers[0], repr(answers[1]), answers[2]) == (0, "ValueError('one')", 2)

        _run(main())

    def test_answers_that_come_at_the_same_time_call_the_loop_once(
        self, make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dispatcher = make(handler=gate)
        calls: list[Any] = []

        async def main() -> None:
            asks = [asyncio.create_task(aio.ask(dispatcher, Numbered(number))) for number in range(10)]
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            call = loop.call_soon_threadsafe
            monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (calls.append(args), call(*args)))
            gate.opened.set()
            assert dispatcher.await_drained(TIMEOUT_S)  # blocks the loop, which meanwhile wakes no task
            await asyncio.gather(*asks)

        _run(main())

        assert len(calls) == 1

    def test_a_loop_that_is_closed_meanwhile_harms_nothing(self, make: Make, gate: Gate) -> None:
        dispatcher = make(handler=gate)
        loop = asyncio.new_event_loop()
        asking = loop.create_task(aio.ask(dispatcher, Numbered(1)))
        loop.run_until_complete(asyncio.sleep(0))
        assert gate.entered.wait(TIMEOUT_S)
        loop.close()
        gate.opened.set()

        assert dispatcher.await_drained(TIMEOUT_S)
        assert _run(aio.ask(dispatcher, Numbered(2))) is None
        assert not asking.done()
        asking._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_it_waits_for_room_without_blocking_the_loop(self, make: Make, gate: Gate) -> None:
        dispatcher = make(DispatcherConfig(queue_capacity=1), handler=gate)
        dispatcher.post(Numbered(1))
        assert gate.entered.wait(TIMEOUT_S)
        dispatcher.post(Numbered(2))

        async def main() -> None:
            asking = asyncio.create_task(aio.ask(dispatcher, Numbered(3)))
            while not dispatcher.core.queue.room.waiters:
                await asyncio.sleep(0)
            gate.opened.set()
            await asking

        _run(main())

        assert [event.number for event in gate.events] == [1, 2, 3]

    def test_an_error_that_no_coroutine_can_raise_ends_the_wait(self, make: Make) -> None:
        """A StopIteration cannot be the exception of an asyncio future, whose task waited for ever."""

        def fail(event: Numbered) -> None:
            raise StopIteration

        with pytest.raises(RuntimeError, match="StopIteration"):
            _run(aio.ask(make(handler=fail), Numbered()))

    def test_a_coroutine_that_would_wait_for_itself_gets_an_error_at_once(self) -> None:
        async def main() -> None:
            async def handle(event: Keyed) -> Any:
                return await aio.ask(dispatcher, Keyed(0, event.lock_key)) if event.number else event.lock_key

            async with of_the_loop(handle) as dispatcher:
                with pytest.raises(AskError, match="waits for it: both have the same key"):
                    await aio.ask(dispatcher, Keyed(1, "a"))

        _run(main())

    def test_blocking_the_loop_of_the_handlers_is_an_error_at_once(self) -> None:
        async def main() -> None:
            async def handle(event: Numbered) -> None: ...

            async with of_the_loop(handle) as dispatcher:
                ask = dispatcher.ask(Numbered())
                with pytest.raises(AskError, match=r"use `await aio\.ask"):
                    ask.result()

        _run(main())

    def test_a_stop_that_gives_up_on_coroutines_discards_what_was_asked(self) -> None:
        async def main() -> None:
            async def hang(event: Numbered) -> None:
                await asyncio.Event().wait()

            async with of_the_loop(hang, DispatcherConfig(drain_timeout_s=0.05)) as dispatcher:
                asks = [dispatcher.ask(Numbered(number)) for number in range(3)]

            assert [ask.exception(0).reason for ask in asks] == ["stop"] * 3  # type: ignore[union-attr]

        _run(main())


def _run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, TIMEOUT_S))


def test_a_stop_leaves_many_asks_to_another_thread_which_answers_all(make: Make, gate: Gate) -> None:
    """A stop answered 100,000 asks itself, in five times of its drain timeout."""
    dispatcher = make(DispatcherConfig(drain_timeout_s=0.2), handler=gate)
    answered_by: list[str] = []
    asks = [dispatcher.ask(Numbered(number)) for number in range(1000)]
    for ask in asks:
        ask.add_done_callback(lambda _: answered_by.append(threading.current_thread().name))
    assert gate.entered.wait(TIMEOUT_S)

    dispatcher.stop()

    assert {str(getattr(ask.exception(TIMEOUT_S), "reason", None)) for ask in asks} == {"stop"}
    assert answered_by.count(threading.current_thread().name) <= 100
