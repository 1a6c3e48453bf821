"""A system that has no thread left: each call of `Thread.start` fails in turn, or all of them from some point on."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    JournalConfig,
    JournalWriter,
    MetricsServer,
    Service,
    ServiceState,
    health,
)
from dispatcher.dispatching.monitor import QueueSizeLog
from dispatcher.journal import EVENTS, read_rows, verify
from dispatcher.mailbox import SystemProcessingTimeService
from dispatcher.supervision.systemd import Supervision
from dispatcher.util import threads
from dispatcher.util.garbage import Freezer

from ..kit import TIMEOUT_S, Other, Work, until
from ..kit.coroutines import running_loop
from ..kit.journals import Job, Posted, write_event

MakeDaemon = Callable[..., "Daemon"]

HANDLER = "AsyncDispatcher"
MANY = 1250
"""More than a batch and a queue whose length is logged."""
COUNT = MANY + 20
"""Events that a daemon handles."""


class Threads:
    """Refuses to start some of the threads that a test starts."""

    def __init__(self, start: Callable[[threading.Thread], None]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self.names: list[str] = []
        self._failed: set[threading.Thread] = set()
        self.refused: list[str] = []
        self.refuses: Callable[[str], bool] = lambda _: False

    def start(self, thread: threading.Thread) -> None:
        with self._lock:
            self.names.append(thread.name)
            is_refused = self.refuses(thread.name)
            assert thread not in self._failed, "Python 3.13.0 does not start a Thread whose start has failed"
            if is_refused:
                self.refused.append(thread.name)
                self._failed.add(thread)
        if is_refused:
            raise RuntimeError("can't start new thread")
        self._start(thread)

    def refuse_number(self, number: int) -> None:
        """Refuse the start of that number, counted from 0 and without handler threads, and no other."""
        self.names.clear()
        self.refused.clear()
        self.refuses = lambda name: name != HANDLER and len(self.others()) == number + 1

    def others(self) -> list[str]:
        """Which threads were started besides handler threads."""
        return [name for name in self.names if name != HANDLER]


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    system = Threads(threading.Thread.start)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: system.start(thread))
    monkeypatch.setattr(threads, "RETRY_S", 0.0)
    yield system
    threads.postponed.clear()


@dataclass
class InCoroutine:
    type: Other
    number: int


class Daemon:
    """A dispatcher with all that starts a thread: timers, a journal that syncs and writes ahead, a long queue.

    It has handlers of both kinds. Those that are plain start once all is posted.
    """

    def __init__(self, folder: Path, loop: AbstractEventLoop, *, write_ahead: bool) -> None:
        self.folder = folder
        self.timers = SystemProcessingTimeService("timers")
        config = DispatcherConfig(batch_size=100, print_events_info_threshold=20, handler_warn_after_s=60)
        kept = JournalConfig(
            write_ahead=write_ahead,
            durability="interval",
            segment_bytes=65536 if write_ahead else 16384,
            buffer_rows=100,
        )
        journal = JournalWriter(folder, kept)
        self.dispatcher = AsyncDispatcher(config, journal=journal, loop=loop, time_service=self.timers)
        self.may_begin = threading.Event()
        self.handled: list[int] = []
        self.dispatcher.register(Job, self.handle, events=Posted)
        self.dispatcher.register(Other, self.handle_in_coroutine, events=InCoroutine)

    def handle(self, event: Posted) -> None:
        assert self.may_begin.wait(TIMEOUT_S)
        self.handled.append(event.number)

    async def handle_in_coroutine(self, event: InCoroutine) -> None:
        self.handled.append(event.number)

    def run(self) -> None:
        """Post, drain, post again and stop; compare all accounts."""
        dispatcher, post = self.dispatcher, self.dispatcher.event_handler.handle
        dispatcher.start()
        for number in range(MANY):
            assert post(InCoroutine(Other.DO, number) if number % 50 == 1 else Posted(Job.STARTED, number))
        self.may_begin.set()
        assert dispatcher.await_drained(TIMEOUT_S)
        for number in range(MANY, COUNT):
            assert dispatcher.post_later(Posted(Job.STARTED, number)).result(TIMEOUT_S)
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()
        assert self.timers.shutdown(TIMEOUT_S)

        assert dispatcher.is_stopped()
        assert dispatcher.failure_cause is None
        assert (dispatcher.stats().handled, dispatcher.stats().failed, dispatcher.queue_size()) == (COUNT, 0, 0)
        assert sorted(self.handled) == list(range(COUNT))
        assert len(list(read_rows(self.folder, EVENTS))) == COUNT
        assert verify(self.folder).problems == ()


@pytest.fixture
def make_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[MakeDaemon]:
    caplog.set_level(logging.INFO)
    numbers = count()
    with running_loop() as loop:
        yield lambda *, write_ahead: Daemon(tmp_path / str(next(numbers)) / "log", loop, write_ahead=write_ahead)


each_journal = pytest.mark.parametrize("write_ahead", [True, False])


@pytest.mark.long
@each_journal
def test_a_dispatcher_bears_any_one_thread_that_cannot_be_started(
    system: Threads, make_daemon: MakeDaemon, write_ahead: bool
) -> None:
    """A thread that failed once raised out of a post, ended the handler thread, or was never tried again."""
    make_daemon(write_ahead=write_ahead).run()
    others = system.others()
    assert set(others) >= {"timers", f"{HANDLER}-details", "journal-log"}

    for number in range(len(others)):
        system.refuse_number(number)
        make_daemon(write_ahead=write_ahead).run()
        if system.refused not in ([], [f"{HANDLER}-details"]):  # the details have time until there is more to log
            assert system.names.count(system.refused[0]) > 1


def test_a_dispatcher_without_a_handler_thread_fails_to_start_and_accepts_nothing(
    system: Threads, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(write_ahead=True)
    system.refuses = lambda name: name == HANDLER
    daemon.dispatcher.init()

    with pytest.raises(RuntimeError, match="can't start new thread"):
        daemon.dispatcher.start()

    assert daemon.dispatcher.is_stopped()
    assert not daemon.dispatcher.post(Posted(Job.STARTED, 1))
    assert daemon.timers.shutdown(TIMEOUT_S)


@each_journal
@pytest.mark.parametrize("names", ["", "journal", "write-ahead"])
def test_a_dispatcher_goes_on_with_its_handler_thread_alone(
    system: Threads, make_daemon: MakeDaemon, write_ahead: bool, names: str
) -> None:
    daemon = make_daemon(write_ahead=write_ahead)
    daemon.may_begin.set()
    system.refuses = lambda name: name != HANDLER and names in name

    daemon.run()


def test_without_the_journal_s_thread_each_frame_is_synced_at_once(system: Threads, tmp_path: Path) -> None:
    """Under `interval`, nothing was synced once the thread could not be started."""
    writer = JournalWriter(tmp_path, JournalConfig(durability="interval", sync_interval_ms=3_600_000))
    system.refuses = lambda _: True
    write_event(writer)
    writer.flush()
    at_once = writer.log.syncs
    system.refuses = lambda _: False
    write_event(writer)
    writer.flush()
    with_thread = writer.log.syncs
    writer.close()

    assert (at_once, with_thread) == (1, 1)
    assert set(system.names) == {f"journal-{tmp_path.name}"}


def test_rows_are_written_at_once_where_no_thread_would_write_them_later(system: Threads, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.flush()
    system.refuses = lambda _: True
    write_event(writer)
    writer.idle()

    assert not writer.rows
    writer.close()


def test_futures_of_posts_are_told_while_the_journal_has_no_writer_and_by_it_later(
    system: Threads, make_daemon: MakeDaemon
) -> None:
    """After one failure, each post waited for the disk, and called the callbacks, for the rest of the program."""
    daemon = make_daemon(write_ahead=True)
    told_by: list[str] = []

    def post(number: int) -> None:
        future = daemon.dispatcher.post_later(Posted(Job.STARTED, number))
        future.add_done_callback(lambda _: told_by.append(threading.current_thread().name))
        assert future.result(TIMEOUT_S)
        until(lambda: len(told_by) == number + 1)

    with daemon.dispatcher:
        daemon.may_begin.set()
        system.refuses = lambda name: name.startswith("write-ahead")
        post(0)
        system.refuses = lambda _: False
        post(1)
        with_writer = daemon.dispatcher.post_later(Posted(Job.STARTED, 2))
        assert with_writer.result(TIMEOUT_S)

    assert told_by[0] == threading.current_thread().name
    assert system.names.count("write-ahead-log") == 2
    assert daemon.timers.shutdown(TIMEOUT_S)


def test_a_long_queue_s_contents_are_logged_once_a_thread_can_be_started(
    system: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    """Its failure ended the handler thread, and the queue was discarded."""
    caplog.set_level(logging.INFO)
    now_ns = [0]
    log = QueueSizeLog(
        "jobs", DispatcherConfig(print_events_info_threshold=1), lambda: [(Work.DO, 1)], lambda: None, lambda: now_ns[0]
    )
    system.refuses = lambda _: True
    log(10, None)
    log(10, None)
    system.refuses = lambda _: False
    now_ns[0] = 1_000_000_000
    log(10, None)

    until(lambda: "jobs: Event type: Work.DO, Event record counter: 1" in caplog.text)
    assert system.names == ["jobs-details"] * 2


def test_a_metrics_server_without_a_thread_fails_to_start_and_frees_its_port(system: Threads) -> None:
    """It waited for ever for a thread that it had not started."""
    server = MetricsServer()
    server.init()
    system.refuses = lambda name: name == "metrics-server"

    with pytest.raises(RuntimeError, match="can't start new thread"):
        server.start()

    assert server.state is ServiceState.STOPPED
    with socket.create_server(("127.0.0.1", server.port or 0)):
        pass


@pytest.mark.usefixtures("alone")
def test_the_metrics_are_answered_while_no_thread_is_left(system: Threads) -> None:
    with MetricsServer() as server:
        system.refuses = lambda _: True
        with socket.create_connection(("127.0.0.1", server.port or 0)) as silent:  # it sends nothing
            with urllib.request.urlopen(server.url_of("/livez"), timeout=TIMEOUT_S) as answer:
                assert answer.status == 200
            silent.settimeout(TIMEOUT_S)
            assert silent.recv(1) == b""


def test_a_daemon_runs_where_the_reports_to_systemd_have_no_thread(system: Threads, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        system.refuses = lambda name: name.startswith("systemd")
        with Supervision(Service("daemon"), health, {"NOTIFY_SOCKET": str(tmp_path / "notify")}) as supervision:
            supervision.started()
            without_thread = manager.recv(4096)
            system.refuses = lambda _: False
            threads.try_postponed()
            with_thread = manager.recv(4096)
            supervision.stopping()

    assert without_thread == b"READY=1"
    assert with_thread.startswith(b"STATUS=")


def test_an_idle_dispatcher_tries_again_so_timers_fire_and_handlers_are_watched(system: Threads) -> None:
    """Only the next batch tried again, so an idle dispatcher never posted what was due, and was not watched."""
    handled = threading.Event()
    dispatcher = AsyncDispatcher(time_service=SystemProcessingTimeService("timers"))
    dispatcher.register(Job, lambda _: handled.set())
    system.refuses = lambda name: name != HANDLER
    with dispatcher:
        dispatcher.post_after(0.001, Posted(Job.STARTED, 1))
        assert threads.postponed
        system.refuses = lambda _: False

        assert handled.wait(TIMEOUT_S)
        until(lambda: not threads.postponed, "the watch and the timer are there")


def test_garbage_is_collected_regularly_once_a_thread_can_be_started(system: Threads) -> None:
    freezer, waits = Freezer(), threading.Event()
    system.refuses = lambda _: True
    freezer.collect_regularly(lambda _: waits.set())
    system.refuses = lambda _: False
    threads.try_postponed()

    assert waits.wait(TIMEOUT_S)


def test_postponed_starts_are_tried_in_turn_at_most_once_a_second(
    system: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, tried = [100.0], list[str]()
    monkeypatch.setattr(threads, "RETRY_S", 1.0)
    monkeypatch.setattr(threads, "_next_try_s", 0.0)
    monkeypatch.setattr(threads, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    refused = {"first", "second"}

    def start(name: str) -> None:
        tried.append(name)
        if name in refused:
            raise MemoryError

    for name in ("first", "second"):
        threads.start_or_postpone(name, partial(start, name))
    for _ in range(3):  # the clock stands still
        threads.try_postponed()
    now_s[0] += 1
    refused.clear()
    threads.try_postponed()

    assert tried == ["first", "second", "first", "second", "first"]
    assert not threads.postponed
