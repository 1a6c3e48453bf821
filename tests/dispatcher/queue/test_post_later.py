"""Posts whose producer does not wait for the disk: a future tells when the event is accepted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    EventNotDeclaredError,
    EventRefusedError,
    JournalError,
)
from dispatcher.journal import group_commit, recover
from dispatcher.queue.flags import ABANDONED

from ...kit import TIMEOUT_S, Gate, Numbered, assert_accounts_balance, until
from ...kit.interrupting import INTERRUPTED_THREADS, Interrupt
from ...kit.journals import Job, Posted
from ...kit.scenarios import play
from ..stage import Rows, Stage, perform, scenarios
from .conftest import numbers

Start = Callable[..., AsyncDispatcher]


class Disk:
    """Its fdatasync waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.error: OSError | None = None
        self.syncs = 0
        self._monkeypatch = monkeypatch

    def hold(self) -> None:
        self._monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, _: int) -> None:
        self.syncs += 1
        self.entered.set()
        assert self.opened.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Let go before the dispatchers stop."""
    disk = Disk(monkeypatch)
    yield disk
    disk.opened.set()


def posted(number: int) -> Posted:
    return Posted(Job.STARTED, number)


def error_of(future: Future[bool]) -> BaseException | None:
    return future.exception(TIMEOUT_S)


def reason_of(future: Future[bool]) -> str:
    error = error_of(future)
    assert isinstance(error, EventRefusedError)
    return error.reason


def started(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


class DiskStage(Stage):
    """A Stage with a disk that a test controls. More verbs: `halt` (writes block from now on), `reach` (wait until one
    blocks), `go` (unblock all) and `fail` (writes raise an error). One more look: `syncs`.
    """

    def __init__(self, disk: Disk, **options: Any) -> None:
        self.disk = disk
        super().__init__(**options)

    def close(self) -> None:
        self.disk.opened.set()
        super().close()

    def halt(self) -> None:
        self.disk.hold()

    def reach(self) -> None:
        assert self.disk.entered.wait(TIMEOUT_S)

    def go(self) -> None:
        self.disk.opened.set()

    def fail(self) -> None:
        self.disk.error = OSError(5, "Input/output error")
        self.go()

    def look(self, what: str) -> Iterable[object]:
        return [self.disk.syncs] if what == "syncs" else super().look(what)


REFUSED = " EventRefusedError:journal"
ON_A_SLOW_DISK: Rows = {
    "posts that are under way together share an fsync": (
        f"halt | later 0 | reach | later {' '.join(map(str, range(1, 100)))} -> later{' ...' * 100} ; is_drained False"
        f" | go | logged -> later{' True' * 100} ; syncs 2 | +0 -> handled 100",
        {},
    ),
    "an event that is cancelled in time is neither logged nor handled": (
        "halt | later 0 | reach | later 1 2 | cancel 0 1 -> cancelled False True | go | logged | +0"
        " -> later True withdrawn True ; seen 0 2 ; remaining 3 ; accepted 2 | stop -> left 0",
        {"queue_capacity": 3},
    ),
    "a stop waits for posts under way and handles their events": (
        "halt | later 0 1 2 3 | reach | begin stop | later 9 -> later ... ... ... ... EventRefusedError:draining"
        " ; is_stopped False | go | release | logged -> later True True True True EventRefusedError:draining"
        " ; seen 0 1 2 3",
        {},
    ),
    # They were accepted, although `True` means journaled.
    "under continue the events are rejected once the log has failed, also those whose producers have gone on": (
        f"halt | later 0 1 2 3 4 | nowait 9 | fail | logged | +0 -> later{REFUSED * 5} ; posted True"
        f" ; rejected journal:6 | later 5 6 7 | nowait 8 | logged -> later{REFUSED * 8} ; posted True False"
        " ; rejected journal:10 ; seen",
        {"writer": {"durability": "sync", "failure_policy": "continue"}},
    ),
    "post_nowait waits neither for the disk nor for room": (
        "halt | nowait 1 2 | reach | nowait 3 -> posted True True QueueFullError | go | +0 -> seen 1 2",
        {"queue_capacity": 2},
    ),
}
IN_MEMORY: Rows = {
    "without write-ahead the future is done at once": ("later 0 1 2 -> later True True True | +0 -> seen 0 1 2", {}),
    "a full queue that rejects reaches the future": (
        "hold 0 | later 1 2 -> later True EventRefusedError:full ; rejected full:1",
        {"queue_capacity": 1, "queue_full_policy": "reject"},
    ),
    "one that is full for too long does, too": (
        "hold 0 | later 1 2 -> later True EventRefusedError:timeout ; rejected timeout:1",
        {"queue_capacity": 1, "queue_full_timeout_s": 0.001},
    ),
}
LOGGED: Rows = {
    "a newer event supersedes a queued one": (
        "hold 0 | later 1 2 11 12 21 | logged -> later True True True True True"
        " | release -> seen 0 21 12 ; discarded_by_reason superseded:3",
        {"coalesce_by": lambda event: event.number % 10},
    ),
    "a full queue makes the producer wait": (
        "hold 0 | begin later 1 2 3 4 5 -> waiting 1 | release -> later True True True True True ; seen 0 1 2 3 4 5",
        {"queue_capacity": 2},
    ),
    "posts made before the start are handled after it": (
        "later 0 | logged -> later True | start | +0 -> seen 0", {"is_started": False},
    ),
} | {
    f"an event whose future is done is in the log, with durability {durability}": (
        "hold 0 | later 1 | logged -> left 2 | later 2 | logged -> left 3 | release -> seen 0 1 2",
        {"writer": {"durability": durability}},
    )
    for durability in ("none", "interval", "sync")
}  # fmt: skip


@scenarios(IN_MEMORY)
def test_in_memory(script: str, options: dict[str, Any]) -> None:
    perform(script, **options)


@scenarios(ON_A_SLOW_DISK)
def test_on_a_slow_disk(script: str, options: dict[str, Any], journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"journal": journal, "writer": {"durability": "sync"}} | options
    with closing(DiskStage(Disk(monkeypatch), **options)) as stage:
        play(stage, script)


@scenarios(LOGGED)
def test_logged(script: str, options: dict[str, Any], journal: Path) -> None:
    perform(script, journal=journal, **{"writer": {"durability": "sync"}} | options)


def test_a_stopped_dispatcher_reaches_the_future() -> None:
    stage = perform("stop | later 1 -> later EventRefusedError:stopped ; rejected stopped:1", name="central")

    [later] = stage.results["later"]
    assert str(later.exception()) == "central: the event was rejected (stopped). The dispatcher has stopped."


# -- accepted ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["none", "sync"])
def test_several_producers_keep_their_orders_whichever_way_they_post(start: Start, durability: str) -> None:
    handled: list[Posted] = []
    dispatcher = start(handled.append, durability=durability)

    def produce(producer: int) -> None:
        for number in range(50):
            event = posted(1000 * producer + number)
            if producer % 2 and number % 5:
                dispatcher.post_later(event)
            else:
                assert dispatcher.post(event)

    threads = [started(lambda producer=producer: produce(producer)) for producer in range(4)]  # type: ignore[misc]
    for thread in threads:
        ended(thread)

    assert dispatcher.await_drained(TIMEOUT_S)
    for producer in range(4):
        assert [n % 1000 for n in numbers(handled) if n // 1000 == producer] == list(range(50))
    assert_accounts_balance(dispatcher, accepted=200)


def test_a_key_that_cannot_be_compared_reaches_the_future_and_its_event_does_not_come_again(
    start: Start, gate: Gate, journal: Path
) -> None:
    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if threading.current_thread().name.startswith("write-ahead"):
                raise LookupError("not comparable")
            return self is other

    dispatcher = start(gate.handle, coalesce_by=lambda _: Key())
    assert dispatcher.post_later(posted(0)).result(TIMEOUT_S)
    assert gate.entered.wait(TIMEOUT_S)
    assert dispatcher.post_later(posted(1)).result(TIMEOUT_S)

    assert isinstance(error_of(dispatcher.post_later(posted(2))), LookupError)

    gate.opened.set()
    dispatcher.stop()
    assert numbers(gate.events) == [0, 1]
    assert recover(journal).accepted == ()


def test_events_that_cannot_be_kept_reach_the_producer_or_the_future_and_leave_the_queue_its_room(start: Start) -> None:
    dispatcher = start(lambda _: None, config=DispatcherConfig(queue_capacity=1))

    for _ in range(3):
        assert isinstance(error_of(dispatcher.post_later(Numbered())), EventNotDeclaredError)
        error = error_of(dispatcher.post_later(Posted(Job.STARTED, object())))  # type: ignore[arg-type]
        assert isinstance(error, JournalError)
        assert "cannot be kept in the journal" in str(error)
        with pytest.raises(EventNotDeclaredError):
            dispatcher.post_nowait(Numbered())
        with pytest.raises(JournalError, match="cannot be kept in the journal"):
            dispatcher.post(Posted(Job.STARTED, object()))  # type: ignore[arg-type]

    assert dispatcher.post_later(posted(1)).result(TIMEOUT_S)


def test_an_event_put_aside_that_the_journal_cannot_keep_is_handled(
    start: Start, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """A post that interrupts another of its thread has returned True before its event is written ahead."""
    nested = [Posted(Job.STARTED, object())]  # type: ignore[arg-type]

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if nested:
                assert dispatcher.post(nested.pop())
            return self is other

    dispatcher = start(gate.handle, coalesce_by=lambda _: Key())
    for number in range(3):
        assert dispatcher.post(posted(number))
        assert gate.entered.wait(TIMEOUT_S)
    assert not nested
    gate.opened.set()
    dispatcher.stop()

    assert len(gate.events) == 4
    assert "the journal cannot keep" in caplog.text


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_so_many_posts_under_way_make_the_producer_wait_for_its_own(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MOST_UNDER_WAY", 4)
    dispatcher = start(lambda _: None)
    disk.hold()
    futures = [dispatcher.post_later(posted(number)) for number in range(4)]
    producer = started(lambda: futures.append(dispatcher.post_later(posted(4))))

    until(lambda: len(dispatcher.core.queue.write_ahead.under_way) == 5, "the fifth post")
    assert producer.is_alive()
    assert len(futures) == 4
    disk.opened.set()
    ended(producer)

    assert all(future.result(TIMEOUT_S) for future in futures)


# -- cancellation and callbacks ----------------------------------------------------------------------------------------


def test_callbacks_may_post_both_ways(start: Start) -> None:
    handled: list[Posted] = []
    dispatcher = start(handled.append)
    answers: list[bool] = []

    def post_more(_: Future[bool]) -> None:
        answers.append(dispatcher.post(posted(1)))
        dispatcher.post_later(posted(2)).add_done_callback(post_again)

    def post_again(_: Future[bool]) -> None:
        answers.append(dispatcher.post(posted(3)))

    for _ in range(20):
        dispatcher.post_later(posted(0)).add_done_callback(post_more)

    until(lambda: len(answers) == 40, "the callbacks")
    assert all(answers)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert sorted(numbers(handled)) == sorted([0, 1, 2, 3] * 20)


def test_a_post_made_while_a_callback_runs_is_not_left_behind(start: Start) -> None:
    """The log's writer looks for more once it has run the callbacks."""
    dispatcher = start(lambda _: None)
    posts: list[Future[bool]] = []

    def post_elsewhere(_: Future[bool]) -> None:
        ended(started(lambda: posts.append(dispatcher.post_later(posted(1)))))

    for _ in range(20):
        dispatcher.post_later(posted(0)).add_done_callback(post_elsewhere)

    until(lambda: len(posts) == 20, "the posts")
    assert all(future.result(TIMEOUT_S) for future in posts)


def test_a_callback_that_ends_its_thread_ends_no_post(start: Start, disk: Disk) -> None:
    def exit_thread(_: Future[bool]) -> None:
        raise SystemExit

    dispatcher = start(lambda _: None)
    disk.hold()
    dispatcher.post_later(posted(0)).add_done_callback(exit_thread)
    disk.opened.set()

    assert dispatcher.post_later(posted(1)).result(TIMEOUT_S)


def test_a_post_that_interrupts_the_leader_is_accepted(start: Start) -> None:
    """As from a signal handler: it appends, and waits for nothing."""
    handled: list[Posted] = []
    dispatcher = start(handled.append)
    assert dispatcher.core.journal is not None
    commit, futures = dispatcher.core.journal.log.commit, []

    def interrupted() -> None:
        if not futures:
            futures.append(dispatcher.post_later(posted(2)))
        commit()

    dispatcher.core.journal.log.commit = interrupted  # type: ignore[method-assign]

    assert dispatcher.post(posted(1))

    assert futures[0].result(TIMEOUT_S)
    assert dispatcher.await_drained(TIMEOUT_S)
    assert sorted(numbers(handled)) == [1, 2]


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_stop_that_does_not_drain_leaves_no_future_undone_and_no_event_lost(
    start: Start, disk: Disk, journal: Path
) -> None:
    handled: list[Posted] = []
    dispatcher = start(handled.append)
    dispatcher.set_drain_events_on_stop(False)
    disk.hold()
    futures = [dispatcher.post_later(posted(0))]
    assert disk.entered.wait(TIMEOUT_S)
    futures += [dispatcher.post_later(posted(number)) for number in range(1, 10)]
    stopping = started(dispatcher.stop)
    until(lambda: dispatcher.core.queue.phase == ABANDONED, "the stop")
    assert reason_of(dispatcher.post_later(posted(99))) == "stopped"
    disk.opened.set()
    ended(stopping)
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    answers = [error_of(future) for future in futures]

    accepted = [number for number, error in enumerate(answers) if error is None]
    assert 0 in accepted
    assert all(isinstance(error, EventRefusedError) for error in answers if error is not None)
    left = [accepted.seq - 1 for accepted in recover(journal).accepted]
    assert sorted(numbers(handled) + left) == accepted


def test_the_log_has_no_thread_left_after_a_stop(start: Start) -> None:
    dispatcher = start(lambda _: None)
    assert dispatcher.post_later(posted(0)).result(TIMEOUT_S)
    [writer] = [thread for thread in threading.enumerate() if thread.name == "write-ahead-journal"]

    dispatcher.stop()

    ended(writer)
    assert reason_of(dispatcher.post_later(posted(1))) == "stopped"


@pytest.mark.parametrize("interrupted", INTERRUPTED_THREADS)
def test_the_log_has_one_thread_after_a_start_of_it_that_was_interrupted(
    start: Start, monkeypatch: pytest.MonkeyPatch, interrupted: type[threading.Thread]
) -> None:
    """The first thread may already run when its start is interrupted. It must not write beside the second one."""
    dispatcher = start(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", interrupted)
        with pytest.raises(Interrupt):
            dispatcher.post_later(posted(0))

    assert dispatcher.post_later(posted(1)).result(TIMEOUT_S)

    until(lambda: [each.name for each in threading.enumerate()].count("write-ahead-journal") == 1, "one is left")


def test_a_signal_handler_that_interrupts_the_start_of_the_logs_thread_can_wait_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waited for the end of its start, and so for the handler."""
    dispatcher = start(lambda _: None)
    accepted: list[bool] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            if self.name == "write-ahead-journal":  # and not the one that syncs
                accepted.append(dispatcher.post_later(posted(1)).result(TIMEOUT_S))

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Interrupted)
        later = dispatcher.post_later(posted(0))

    assert (later.result(TIMEOUT_S), accepted) == (True, [True])


# -- a disk that fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "number"), [("write", 28), ("fdatasync", 5)], ids=["ENOSPC", "EIO"])
def test_each_post_under_way_gets_the_disks_error_and_none_of_their_events_is_handled(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    handled: list[Posted] = []
    dispatcher = start(handled.append)
    disk.hold()
    first = dispatcher.post_later(posted(0))
    assert disk.entered.wait(TIMEOUT_S)
    futures = [dispatcher.post_later(posted(number)) for number in range(1, 6)]
    answers: list[bool] = []
    producers = [started(lambda: answers.append(dispatcher.post(posted(9)))) for _ in range(4)]
    assert dispatcher.core.journal is not None
    until(lambda: len(dispatcher.core.journal._group._pending) == 9, "the next batch")  # type: ignore[union-attr]

    def fail(*_: object) -> Any:
        raise OSError(number, os.strerror(number))

    if call == "write":
        monkeypatch.setattr(os, "write", fail)
    else:
        disk.error = OSError(number, os.strerror(number))
    disk.opened.set()
    for producer in producers:
        ended(producer)
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    refused = futures if call == "write" else [first, *futures]
    for future in refused:
        error = error_of(future)
        assert isinstance(error, EventRefusedError)
        assert error.reason == "journal"
        assert isinstance(error.__cause__, JournalError)
        assert f"the journal cannot be written: {os.strerror(number)}" in str(error)
    assert answers == [False] * 4
    assert numbers(handled) in ([], [0] if call == "write" else [])
    assert dispatcher.stats().rejected["journal"] + dispatcher.stats().rejected.get("stopped", 0) == len(refused) + 4
    assert_accounts_balance(dispatcher, accepted=1 if call == "write" else 0)
    assert f"{os.strerror(number)}" in str(dispatcher.failure_cause)
