"""Asking for an event: its future has what the handler returns, or why nothing will come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AskError,
    AsyncDispatcher,
    DispatcherConfig,
    Event,
    EventDiscardedError,
    EventNotDeclaredError,
    EventRefusedError,
    JournalConfig,
    JournalError,
    JournalWriter,
    MultiDispatcher,
    QueueFullError,
    aio,
)
from dispatcher.journal import recover

from ...kit import TIMEOUT_S, Gate, Numbered, Other, Work, assert_accounts_balance, until
from ...kit.coroutines import Keyed
from ...kit.journals import Job, Posted, after_a_crash

Make = Callable[..., AsyncDispatcher]


def number_of(event: Numbered) -> int:
    return event.number


def test_the_error_of_the_handler_is_the_futures_and_the_event_has_failed(make: Make) -> None:
    error = StopIteration("no")

    def fail(event: Numbered) -> None:
        raise error

    dispatcher = make(handler=fail)

    assert dispatcher.ask(Numbered()).exception(TIMEOUT_S) is error
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 1


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_asks_among_posts_are_answered_and_keep_their_order(make: Make, measure_times: Any) -> None:
    gate = Gate()
    dispatcher = make(DispatcherConfig(measure_times=measure_times))
    handled: list[int] = []

    def handle(event: Numbered) -> int:
        gate.handle(event)
        handled.append(event.number)
        return event.number

    dispatcher.register(Work, handle)
    asks = []
    for number in range(0, 200, 2):
        dispatcher.post(Numbered(number))
        asks.append(dispatcher.ask(Numbered(number + 1)))
    gate.opened.set()

    assert [ask.result(TIMEOUT_S) for ask in asks] == list(range(1, 200, 2))
    assert handled == list(range(200))
    assert_accounts_balance(dispatcher, 200)


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


def test_a_stop_that_gives_up_on_a_handler_leaves_no_future_undone(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=0.05), handler=gate)
    asks = [dispatcher.ask(Numbered(number)) for number in range(3)]
    assert gate.entered.wait(TIMEOUT_S)

    dispatcher.stop()

    assert [ask.exception(0).reason for ask in asks] == ["stop"] * 3  # type: ignore[union-attr]
    gate.opened.set()
    with pytest.raises(EventRefusedError, match="stopped"):
        dispatcher.ask(Numbered()).result(0)


def test_an_ask_that_would_wait_for_the_start_raises() -> None:
    dispatcher = AsyncDispatcher(queue_capacity=1)
    first = dispatcher.ask(Numbered())

    with pytest.raises(QueueFullError, match="not started"):
        dispatcher.ask(Numbered())

    dispatcher.stop()
    with pytest.raises(EventDiscardedError):
        first.result(0)


def test_a_callback_that_raises_harms_nothing(make: Make) -> None:
    dispatcher = make(handler=number_of)

    def fail(_: Future[Any]) -> None:
        raise SystemExit("in a callback")

    dispatcher.mailbox_executor.submit(lambda: dispatcher.post(Numbered())).result(TIMEOUT_S)
    gate = Gate()
    dispatcher.register(Other, gate)
    dispatcher.post(Numbered(type=Other.DO))  # type: ignore[arg-type]
    ask = dispatcher.ask(Numbered(1))
    ask.add_done_callback(fail)
    gate.opened.set()

    assert ask.result(TIMEOUT_S) == 1
    assert dispatcher.ask(Numbered(2)).result(TIMEOUT_S) == 2


def test_a_partition_is_asked_for_the_events_of_its_keys() -> None:
    with MultiDispatcher(partitions=3) as dispatcher:
        dispatcher.register(Work, lambda event: threading.current_thread().name)
        names = {dispatcher.ask(Keyed(0, key)).result(TIMEOUT_S) for key in range(3)}

    assert names == {f"MultiDispatcher-{number}" for number in range(3)}


class TestInWriteAheadMode:
    @pytest.mark.parametrize("durability", ["none", "sync"])
    def test_an_answer_comes_once_the_row_is_in_the_journal(self, make: Make, tmp_path: Path, durability: Any) -> None:
        journal = tmp_path / "journal"
        dispatcher = make(
            journal=JournalWriter(journal, JournalConfig(write_ahead=True, durability=durability)),
        )
        dispatcher.register(Job, lambda event: event.number, events=Posted)

        for number in range(20):
            assert dispatcher.ask(Posted(Job.STARTED, number)).result(TIMEOUT_S) == number
            assert not recover(after_a_crash(journal, tmp_path / f"crashed-{number}")).accepted

    @pytest.mark.parametrize("durability", ["none", "sync"])
    @pytest.mark.parametrize("way", ["cancel", "cancel at once", "timeout", "aio"])
    def test_a_withdrawn_event_does_not_come_again(
        self, make: Make, tmp_path: Path, gate: Gate, way: str, durability: Any
    ) -> None:
        """It did after a crash, until the next row was written."""
        journal = tmp_path / "journal"
        dispatcher = make(journal=JournalWriter(journal, JournalConfig(write_ahead=True, durability=durability)))
        dispatcher.register(Job, gate, events=Posted)
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
        self, make: Make, tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        dispatcher = make(journal=JournalWriter(tmp_path, JournalConfig(write_ahead=True)))
        dispatcher.register(Job, gate, events=Posted)
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

        assert [accepted.seq for accepted in recover(tmp_path).accepted] == [3]
        assert "1 Job.STARTED; the next start handles those that the journal has" in caplog.text

    def test_an_event_that_is_withdrawn_on_its_way_into_the_log_leaves_it(
        self, make: Make, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
        dispatcher = make(journal=journal)
        dispatcher.register(Job, gate, events=Posted)
        dispatcher.post(Posted(Job.STARTED, 1))
        assert gate.entered.wait(TIMEOUT_S)
        settled: list[int] = []
        monkeypatch.setattr(journal, "settle_now", settled.append)
        written, queued, append = threading.Event(), threading.Event(), journal.log.append_accepted

        def append_and_wait(lines: Any) -> int:
            seq = append(lines)
            written.set()
            assert queued.wait(TIMEOUT_S)
            return seq

        monkeypatch.setattr(journal.log, "append_accepted", append_and_wait)
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

    def test_a_disk_that_fails_fails_the_ask(self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = JournalConfig(write_ahead=True, failure_policy="continue")
        journal = JournalWriter(tmp_path, config)
        dispatcher = make(journal=journal)

        def fill_the_disk(event: Posted) -> None:
            monkeypatch.setattr(journal.log, "append_rows", _raise)

        dispatcher.register(Job, fill_the_disk, events=Posted)

        with pytest.raises(JournalError):
            dispatcher.ask(Posted(Job.STARTED, 1)).result(TIMEOUT_S)
        with pytest.raises(EventRefusedError, match="journal"):
            dispatcher.ask(Posted(Job.STARTED, 2)).result(TIMEOUT_S)

    def test_an_undeclared_event_raises_at_the_call(self, make: Make, tmp_path: Path) -> None:
        dispatcher = make(journal=JournalWriter(tmp_path, JournalConfig(write_ahead=True)))
        dispatcher.register(Job, number_of, events=Posted)

        with pytest.raises(EventNotDeclaredError):
            dispatcher.ask(Event(Job.STARTED))


def _raise(*_: Any) -> None:
    raise OSError(28, "No space left on device")


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

            dispatcher = AsyncDispatcher(loop=asyncio.get_running_loop())
            dispatcher.register(Work, handle)
            dispatcher.start()
            asks = [aio.ask(dispatcher, Keyed(key, key)) for key in range(3)]
            answers = await asyncio.gather(*asks, return_exceptions=True)
            await aio.stop(dispatcher)

            assert (answers[0], repr(answers[1]), answers[2]) == (0, "ValueError('one')", 2)

        _run(main())

    def test_a_timeout_withdraws_the_event(self, make: Make, gate: Gate) -> None:
        dispatcher = make(handler=gate)
        dispatcher.post(Numbered(1))
        assert gate.entered.wait(TIMEOUT_S)

        with pytest.raises(TimeoutError):
            _run(aio.ask(dispatcher, Numbered(2), timeout=0.001))
        gate.opened.set()

        assert dispatcher.await_drained(TIMEOUT_S)
        assert [event.number for event in gate.events] == [1]

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

            dispatcher = AsyncDispatcher(loop=asyncio.get_running_loop())
            dispatcher.register(Work, handle)
            dispatcher.start()

            with pytest.raises(AskError, match="waits for it: both have the same key"):
                await aio.ask(dispatcher, Keyed(1, "a"))
            await aio.stop(dispatcher)

        _run(main())

    def test_blocking_the_loop_of_the_handlers_is_an_error_at_once(self) -> None:
        async def main() -> None:
            async def handle(event: Numbered) -> None: ...

            dispatcher = AsyncDispatcher(loop=asyncio.get_running_loop())
            dispatcher.register(Work, handle)
            dispatcher.start()
            ask = dispatcher.ask(Numbered())

            with pytest.raises(AskError, match=r"use `await aio\.ask"):
                ask.result()
            await aio.stop(dispatcher)

        _run(main())

    def test_a_stop_that_gives_up_on_coroutines_discards_what_was_asked(self) -> None:
        async def main() -> None:
            async def hang(event: Numbered) -> None:
                await asyncio.Event().wait()

            dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.05), loop=asyncio.get_running_loop())
            dispatcher.register(Work, hang)
            dispatcher.start()
            asks = [dispatcher.ask(Numbered(number)) for number in range(3)]

            await aio.stop(dispatcher)

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

    assert all(isinstance(ask.exception(TIMEOUT_S), EventDiscardedError) for ask in asks)
    assert answered_by.count(threading.current_thread().name) <= 100
