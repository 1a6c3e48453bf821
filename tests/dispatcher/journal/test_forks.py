"""A journal belongs to the process that opened it: a forked child touches nothing of it, from whatever state."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    DispatcherGroup,
    ForkedProcessError,
    JournalConfig,
    JournalError,
    JournalWriter,
    Service,
    ServiceState,
)
from dispatcher.journal import EVENTS, read_rows, verify
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, until
from ...kit.forked import forks, in_child
from ...kit.journals import Job, Later, Posted, State, contents, is_locked, write_event, write_frames, write_segments

pytestmark = [
    pytest.mark.long,
    *forks,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at the descriptors in /proc"),
]

STATES = ("made", "inited", "started", "draining", "stopped")
KINDS = ("journaled", "write-ahead", "synced", "grouped", "bounded", "timed")


class Daemon:
    """A dispatcher with a journal, and all that may be there with it, brought into a state."""

    def __init__(self, folder: Path, kind: str, gate: Gate) -> None:
        self.folder = folder
        self.is_ahead = kind != "journaled"
        durability: Any = "sync" if kind == "synced" else "interval"
        self.journal = JournalWriter(folder, JournalConfig(write_ahead=self.is_ahead, durability=durability))
        self.dispatcher = AsyncDispatcher(
            DispatcherConfig(drain_timeout_s=600, queue_capacity=100 if kind == "bounded" else None),
            name="central",
            journal=self.journal,
            time_service=ManualClock() if kind == "timed" else None,
        )
        self.dispatcher.register(Job, gate, events=Posted)
        self.service: Service = self.dispatcher
        if kind == "grouped":
            self.service = DispatcherGroup([self.dispatcher, AsyncDispatcher(name="other")], name="group")
        self._gate = gate
        self.accepted = 0
        self._stopping: threading.Thread | None = None

    def bring_to(self, state: str) -> None:
        if state == "made":
            return
        self.service.init()
        if state == "inited":
            return
        self.service.start()
        self.post()
        assert self._gate.entered.wait(TIMEOUT_S)
        self.post()
        if state == "draining":
            self._stopping = threading.Thread(target=self.service.stop)
            self._stopping.start()
            until(lambda: self.dispatcher.core.queue.phase, "the drain")
        if state == "stopped":
            self.end()

    def post(self) -> None:
        assert self.dispatcher.event_handler.handle(Posted(Job.STARTED, self.accepted))
        self.accepted += 1

    def end(self) -> None:
        self._gate.opened.set()
        if self._stopping is not None:
            self._stopping.join(TIMEOUT_S)
        self.service.stop()
        assert self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)


@pytest.fixture
def make(journal: Path, gate: Gate) -> Iterator[Callable[[str, str], Daemon]]:
    made: list[Daemon] = []

    def make(kind: str, state: str) -> Daemon:
        made.append(Daemon(journal, kind, gate))
        made[-1].bring_to(state)
        return made[-1]

    yield make
    for daemon in made:
        daemon.end()


def uses_of(daemon: Daemon) -> dict[str, Callable[[], Any]]:
    """Every way to use a dispatcher and its journal."""
    dispatcher, journal, event = daemon.dispatcher, daemon.journal, Posted(Job.STARTED, 9)
    journal_log = journal.log
    return {
        "post": lambda: dispatcher.event_handler.handle(event),
        "post without waiting": lambda: dispatcher.post_nowait(event),
        "post later": lambda: dispatcher.post_later(event),
        "await drained": lambda: dispatcher.await_drained(1.0),
        "when drained": dispatcher.core.when_drained,
        "mailbox executor": lambda: dispatcher.mailbox_executor,
        "attach": lambda: journal.attach(),
        "make a dispatcher of it": lambda: AsyncDispatcher(name="another", journal=journal),
        "kind": lambda: journal.kind("central", "Job", "STARTED", "handled"),
        "transition": lambda: journal.transition("m", "e", State.NEW, Job.STARTED, State.RUNNING, valid=True),
        "write an event": lambda: write_event(journal),
        "flush": journal.flush,
        "idle": journal.idle,
        "append": lambda: journal.append_accepted(b"{}"),
        "append later": lambda: journal.append_later(Later(b"{}"), wait=True),
        "in flight": lambda: journal.under_way,
        "settle": lambda: journal.settle(1),
        "roll": journal.roll,
        "close": journal.close,
        "log: append": lambda: journal_log.append_accepted((b"{}",)),
        "log: next seq": journal_log.next_seq,
        "log: commit": journal_log.commit,
        "log: roll": journal_log.roll,
        "log: retain": journal_log.retain,
        "log: close": journal_log.close,
        "log: fail": lambda: journal_log.fail(OSError(5, "no disk")),
    }


def quiet_uses_of(daemon: Daemon) -> dict[str, Callable[[], Any]]:
    """What a child may do, as its way out of a `with` block or a `finally` does: it changes nothing."""
    dispatcher = daemon.dispatcher
    return {
        "stats": lambda: dispatcher.stats(),
        "stop": daemon.service.stop,
        "wait": lambda: daemon.service.wait_for_service_to_stop(TIMEOUT_S) or "for ever",
        "release": daemon.journal.log.release,
    }


def outcome_of(use: Callable[[], Any]) -> str:
    try:
        answer = use()
    except Exception as error:
        return type(error).__name__
    return answer if isinstance(answer, str) else "returned"


def descriptors_into(folder: Path) -> list[str]:
    """Where this process's descriptors lead that lead into the folder."""
    leads = []
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            leads.append(str(descriptor.readlink()))
    return [name for name in leads if name.startswith(str(folder))]


def watch_files(folder: Path) -> list[str]:
    """From now on, for the rest of this process: whatever is done with files of the folder, or with locks."""
    touched: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith("fcntl.") or any(str(folder) in str(argument) for argument in arguments):
            touched.append(event)

    sys.addaudithook(note)
    return touched


@pytest.mark.parametrize(
    ("kind", "state"),
    [*(("write-ahead", state) for state in STATES), *((kind, "started") for kind in KINDS if kind != "write-ahead")],
)
def test_a_child_uses_nothing_of_its_parents_journal(make: Callable[[str, str], Daemon], kind: str, state: str) -> None:
    daemon = make(kind, state)
    journal = daemon.folder

    def use_all() -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
        inherited = descriptors_into(journal)
        touched = watch_files(journal)
        refused = {name: outcome_of(use) for name, use in uses_of(daemon).items()}
        quiet = {name: outcome_of(use) for name, use in quiet_uses_of(daemon).items()}
        del daemon.journal, daemon.dispatcher, daemon.service  # and the collector finds nothing to release
        return refused, quiet, inherited, list(touched)

    before = contents(journal)
    refused, quiet, inherited, touched = in_child(use_all)

    assert refused == dict.fromkeys(refused, "ForkedProcessError")
    assert quiet == dict.fromkeys(quiet, "returned")
    assert (inherited, touched) == ([], [])
    if state in ("made", "inited"):  # otherwise the parent's threads write
        assert contents(journal) == before
    assert is_locked(journal) == (state != "stopped")
    if state == "started":
        daemon.post()
    daemon.end()
    assert verify(journal).problems == ()
    assert len(list(read_rows(journal, EVENTS))) == daemon.accepted == daemon.dispatcher.stats().handled


@pytest.mark.parametrize(
    ("kind", "state"),
    [("journaled", "made"), ("write-ahead", "inited"), ("grouped", "made"), ("timed", "inited")],
)
def test_a_dispatcher_made_before_the_fork_with_a_journal_starts_in_no_worker(
    make: Callable[[str, str], Daemon], kind: str, state: str
) -> None:
    """Two workers that started it wrote one segment: accepted events were lost, and nothing said so."""
    daemon = make(kind, state)

    def start() -> tuple[str, str]:
        if state == "made":
            daemon.service.init()
        with pytest.raises(ForkedProcessError) as raised:
            daemon.service.start()
        return str(raised.value), daemon.service.state.name

    answers = [in_child(start), in_child(start)]
    daemon.service.start()
    daemon.post()
    daemon.end()

    advice = (
        "In each process, after the fork, make the dispatcher and its JournalWriter; give each a folder of its own."
    )
    said = f"central: this process was forked from the one that opened the journal {daemon.folder}. {advice}"
    assert answers == [(said, "STOPPED")] * 2
    assert verify(daemon.folder).problems == ()
    assert len(list(read_rows(daemon.folder, EVENTS))) == 1


def test_each_worker_may_have_a_journal_of_its_own(tmp_path: Path, journal: Path) -> None:
    JournalWriter(journal)  # the parent's, which is dropped

    def work(number: int) -> tuple[int, int]:
        folder = tmp_path / f"worker-{number}"
        dispatcher = AsyncDispatcher(journal=JournalWriter(folder, JournalConfig(write_ahead=True)))
        dispatcher.register(Job, lambda _: None, events=Posted)
        with dispatcher:
            accepted = sum(dispatcher.event_handler.handle(Posted(Job.STARTED, each)) for each in range(50))
        return accepted, len(list(read_rows(folder, EVENTS)))

    assert [in_child(lambda number=number: work(number)) for number in range(2)] == [(50, 50)] * 2


WORK = "import os, sys; os.write({1}, b'r'); os.read({0}, 1)"


def work(wait: int, tell: int) -> None:
    """What a worker does: it says that it runs, and lives until the test ends."""
    os.write(tell, b"r")
    os.read(wait, 1)


def by_fork(wait: int, tell: int) -> None:
    if os.fork() == 0:
        work(wait, tell)
        os._exit(0)


def by_multiprocessing(wait: int, tell: int) -> None:
    get_context("fork").Process(target=work, args=(wait, tell)).start()


def by_subprocess(wait: int, tell: int, hook: Callable[[], Any] | None = None) -> None:
    command = [sys.executable, "-c", WORK.format(wait, tell)]
    subprocess.Popen(command, close_fds=False, preexec_fn=hook)


def by_subprocess_with_a_hook(wait: int, tell: int) -> None:
    by_subprocess(wait, tell, hook=os.getpid)


def by_posix_spawn(wait: int, tell: int) -> None:
    os.posix_spawn(sys.executable, [sys.executable, "-c", WORK.format(wait, tell)], os.environ)


@pytest.mark.parametrize(
    "start_worker",
    [by_fork, by_multiprocessing, by_subprocess, by_subprocess_with_a_hook, by_posix_spawn],
)
def test_a_daemon_that_crashed_starts_again_while_its_worker_lives(
    journal: Path, start_worker: Callable[[int, int], None]
) -> None:
    """The worker had inherited the descriptor of the lock, and so the lock."""
    config = JournalConfig(write_ahead=True, durability="sync")
    (wait, let_go), (told, tell) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(let_go)
            for descriptor in (wait, tell):
                os.set_inheritable(descriptor, True)
            dispatcher = AsyncDispatcher(journal=JournalWriter(journal, config))
            dispatcher.register(Job, lambda _: None, events=Posted)
            dispatcher.start()
            dispatcher.event_handler.handle(Posted(Job.STARTED, 1))
            start_worker(wait, tell)
            assert select.select([told], [], [], TIMEOUT_S)[0]
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    try:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        writer = JournalWriter(journal, config)
        writer.close()
    finally:
        for descriptor in (wait, let_go, told, tell):
            os.close(descriptor)


@pytest.mark.parametrize("name", [".lock", "null", ".segment-00000001.journal.open", ".segment-00000002.journal.open"])
def test_a_fork_while_another_thread_opens_a_descriptor_leaves_no_copy_of_it(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A thread that has opened a file has not noted its descriptor yet."""
    opened, forked = threading.Event(), threading.Event()
    os_open = os.open

    def open_and_wait(path: Any, *args: Any, **kwargs: Any) -> int:
        descriptor = os_open(path, *args, **kwargs)
        if Path(path).name == name:
            opened.set()
            forked.wait(0.2)  # in vain: the fork waits for this thread
        return descriptor

    def write() -> None:
        with contextlib.closing(JournalWriter(journal)) as writer:
            write_segments(writer, 2)

    monkeypatch.setattr(os, "open", open_and_wait)
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))  # where the descriptors in reserve lead
    (tmp_path / "null").touch()
    thread = threading.Thread(target=write)
    thread.start()
    assert opened.wait(TIMEOUT_S)

    inherited = in_child(lambda: [Path(path).name for path in descriptors_into(tmp_path)])

    forked.set()
    thread.join(TIMEOUT_S)
    assert name not in inherited


def test_a_fork_while_other_threads_write_leaves_the_child_nothing_and_the_parent_everything(journal: Path) -> None:
    """A fork comes at any step of the journal's threads; the child then ends as a program does."""
    config = JournalConfig(write_ahead=True, durability="sync", segment_bytes=2048, retention_bytes=1 << 20)
    dispatcher = AsyncDispatcher(journal=JournalWriter(journal, config))
    dispatcher.register(Job, lambda _: None, events=Posted)
    over = threading.Event()
    accepted = [0, 0]

    def produce(number: int) -> None:
        while not over.is_set():
            accepted[number] += dispatcher.event_handler.handle(Posted(Job.STARTED, number))

    with dispatcher:
        producers = [threading.Thread(target=produce, args=(number,)) for number in range(2)]
        for producer in producers:
            producer.start()

        def use() -> tuple[str, str, str]:
            return (
                outcome_of(lambda: dispatcher.event_handler.handle(Posted(Job.STARTED, 9))),
                outcome_of(dispatcher.core.journal.close if dispatcher.core.journal else list),
                outcome_of(dispatcher.stop),
            )

        try:
            answers = [in_child(use) for _ in range(10)]
        finally:
            over.set()
            for producer in producers:
                producer.join(TIMEOUT_S)

    assert answers == [("ForkedProcessError", "ForkedProcessError", "returned")] * 10
    assert verify(journal).problems == ()
    assert len(list(read_rows(journal, EVENTS))) == sum(accepted)


@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync"])
@pytest.mark.parametrize("use", ["append", "flush", "roll", "close"])
def test_a_signal_handler_that_forks_amid_the_journals_work_and_returns_in_the_child_changes_nothing(
    journal: Path, monkeypatch: pytest.MonkeyPatch, use: str, call: str
) -> None:
    """Signal handlers run during a call that waits for the disk. The child then goes on with what its parent was at."""
    config = JournalConfig(write_ahead=True, durability="sync")
    writer = JournalWriter(journal, config)
    write_frames(writer)
    write_event(writer)
    uses: dict[str, Callable[[], Any]] = {"append": lambda: writer.append_accepted(b"{}"), "flush": writer.flush}
    uses |= {"roll": writer.roll, "close": writer.close}
    original, parent, changed = getattr(os, call), os.getpid(), []

    def fork_first(*args: Any) -> Any:
        if os.getpid() != parent:
            return original(*args)
        before = contents(journal)
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            changed.append(contents(journal) != before)
        return original(*args)

    try:
        monkeypatch.setattr(os, call, fork_first)
        uses[use]()
    finally:
        if os.getpid() != parent:
            os._exit(0)
    monkeypatch.undo()
    writer.close()

    assert not any(changed)
    assert verify(journal).problems == ()
    assert len(list(read_rows(journal, EVENTS))) == 2


@pytest.mark.parametrize("journaled", [False, True])
def test_a_handler_that_forks_and_returns_in_the_child_handles_nothing_there(journal: Path, journaled: bool) -> None:
    """The child had gone on with its copy of the queue, and with the journal's segment."""
    told, tell = os.pipe()
    writer = JournalWriter(journal) if journaled else None
    dispatcher = AsyncDispatcher(journal=writer)
    exits: list[int] = []

    def handle(event: Any) -> None:
        os.write(tell, b"parent." if os.getpid() == parent else b"child.")
        if event.number == 1 and (pid := os.fork()):
            exits.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    parent = os.getpid()
    dispatcher.register(Job, handle)
    for number in (1, 2, 3):
        dispatcher.event_handler.handle(Posted(Job.STARTED, number))
    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        assert pipe.read() == b"parent." * 3

    assert exits == [0]
    assert dispatcher.state is ServiceState.STOPPED
    if journaled:
        assert len(list(read_rows(journal, EVENTS))) == 3
        assert verify(journal).problems == ()


def test_the_lock_of_a_closed_journal_is_free_while_a_child_of_its_writer_lives(journal: Path) -> None:
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    wait, let_go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(let_go)
        os.read(wait, 1)
        os._exit(0)
    try:
        with pytest.raises(JournalError, match="being written"):
            JournalWriter(journal, JournalConfig(write_ahead=True))
        writer.close()
        JournalWriter(journal, JournalConfig(write_ahead=True)).close()
    finally:
        os.close(wait)
        os.close(let_go)
        os.waitpid(pid, 0)
