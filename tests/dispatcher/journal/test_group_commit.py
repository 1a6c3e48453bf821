"""Producers that share the write and the fsync of their events: in all orders, interrupted, and when the disk fails.

A gate that was opened once lets all producers of a batch pass, also where the process has no descriptor left.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Sequence

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import group_commit, recover
from dispatcher.journal.group_commit import GroupCommit
from dispatcher.journal.turns import (
    Append,
    DescriptorGate,
    Gathering,
    LaterAppend,
    ReentrantAppendError,
    TurnGate,
    shared_gate,
)

from ...kit import TIMEOUT_S, in_threads, until
from ...kit.journals import Later, Open, frames_of, open_segments
from ..stop import _baton


@pytest.fixture
def writer(open_writer: Open) -> JournalWriter:
    # The journal's own thread would sync as well, and take what a test has released for others.
    return open_writer(write_ahead=True, durability="sync", sync_interval_ms=10**9)


class HeldCommits:
    """The log's fsyncs, each of which waits until the test lets it go on."""

    def __init__(self, writer: JournalWriter) -> None:
        self._commit = writer.log.commit
        self.entered = threading.Semaphore(0)
        self.goes_on = threading.Semaphore(0)
        self.count = 0
        self.first: Callable[[], None] = lambda: None
        writer.log.commit = self.commit  # type: ignore[method-assign]

    def commit(self) -> None:
        self.count += 1
        self.entered.release()
        if self.count == 1:
            self.first()
        assert self.goes_on.acquire(timeout=TIMEOUT_S)
        self._commit()


class Producer(threading.Thread):
    def __init__(self, writer: JournalWriter, line: bytes) -> None:
        super().__init__(daemon=True)
        self._writer, self._line = writer, line
        self.seq = 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.seq = self._writer.append_accepted(self._line)
        except BaseException as error:
            self.error = error

    def end(self) -> int:
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        return self.seq


@pytest.fixture
def commits(writer: JournalWriter) -> HeldCommits:
    return HeldCommits(writer)


@pytest.fixture
def first(writer: JournalWriter, commits: HeldCommits) -> Producer:
    """A producer amid its fsync."""
    first = Producer(writer, b"first")
    assert commits.entered.acquire(timeout=TIMEOUT_S)
    return first


linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no eventfd")
both = pytest.mark.parametrize("make", [TurnGate, pytest.param(DescriptorGate, marks=linux)])


def pending(writer: JournalWriter) -> int:
    return len(writer._group._pending)


def batches(writer: JournalWriter) -> list[bytes]:
    [segment] = open_segments(writer.path)
    return [frame.payload for frame in frames_of(segment, "ACCEPTED")]


@both
def test_what_comes_during_an_fsync_is_one_frame_under_the_next(
    writer: JournalWriter,
    commits: HeldCommits,
    first: Producer,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], TurnGate],
) -> None:
    monkeypatch.setattr(group_commit, "shared_gate", make)
    others = [Producer(writer, b"1") for _ in range(20)]
    until(lambda: pending(writer) == 20, "the next batch")

    commits.goes_on.release(2)

    assert [first.end(), *sorted(other.end() for other in others)] == list(range(1, 22))
    assert commits.count == 2
    assert batches(writer) == [b"first", b"\n".join([b"1"] * 20)]


def test_events_of_both_kinds_keep_their_order(writer: JournalWriter, commits: HeldCommits, first: Producer) -> None:
    lines = [b"a", b"b", b"c", b"d"]
    later = [Later(line) for line in lines[:2]]
    for each in later:
        writer.append_later(each, wait=True)
    waiting = Producer(writer, lines[2])
    until(lambda: pending(writer) == 3, "the third")
    last = Later(lines[3])
    writer.append_later(last, wait=True)

    commits.goes_on.release(10)

    assert last.told.wait(TIMEOUT_S)
    assert (first.end(), waiting.end()) == (1, 4)
    assert [each.seq for each in (*later, last)] == [2, 3, 5]
    assert all(each.calls == ["end", "tell"] for each in (*later, last))
    assert b"\n".join(batches(writer)) == b"first\na\nb\nc\nd"


def test_an_interrupted_leader_leaves_the_others_to_the_next(writer: JournalWriter, commits: HeldCommits) -> None:
    """Its event is in the log; it is settled, because its post did not return."""
    others: list[Producer] = []

    def interrupt() -> None:
        others.extend(Producer(writer, b"other") for _ in range(3))
        until(lambda: pending(writer) == 3, "the others")
        raise KeyboardInterrupt

    commits.first = interrupt
    commits.goes_on.release(5)

    with pytest.raises(KeyboardInterrupt):
        writer.append_accepted(b"interrupted")

    assert sorted(other.end() for other in others) == [2, 3, 4]
    writer.close()
    assert [accepted.seq for accepted in recover(writer.path).accepted] == [2, 3, 4]


def test_an_interrupted_leader_wakes_the_next_though_the_first_has_ended(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch was pending again, and its first producer alone was woken, which had nothing to lead for."""
    ended, waiting = Append(b"ended"), Append(b"waiting")
    ended.place, waiting.place = TurnGate(), TurnGate()
    writer._group._pending.extend((ended, waiting))

    def interrupt() -> None:
        ended.is_done = True
        raise KeyboardInterrupt

    monkeypatch.setattr(ended, "end", interrupt)

    with pytest.raises(KeyboardInterrupt):
        writer.append_accepted(b"interrupted")

    assert ended.place.is_open
    assert waiting.place.is_open


def test_an_interrupted_producer_has_its_event_left_out_or_settled(
    writer: JournalWriter, commits: HeldCommits, first: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:

    def interrupt(_: TurnGate) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(TurnGate, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append_accepted(b"interrupted")
    second = Producer(writer, b"second")
    until(lambda: pending(writer) == 2, "the second")
    commits.goes_on.release(5)

    assert (first.end(), second.end()) == (1, 2)
    writer.close()
    assert [accepted.line for accepted in recover(writer.path).accepted] == [b"first", b"second"]


def test_a_post_that_interrupts_a_waiting_one_waits_for_no_other_thread(
    writer: JournalWriter, commits: HeldCommits, first: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The post that it interrupted may be woken to lead, and cannot before this one has returned."""
    nested: list[int] = []
    interrupted = threading.Event()

    wait = TurnGate.wait

    def interrupt(gate: TurnGate) -> None:
        if not interrupted.is_set():
            interrupted.set()
            nested.append(writer.append_accepted(b"nested"))
        wait(gate)

    monkeypatch.setattr(TurnGate, "wait", interrupt)
    outer = Producer(writer, b"outer")
    assert interrupted.wait(TIMEOUT_S)
    commits.goes_on.release(5)

    assert first.end() == 1
    assert sorted([outer.end(), *nested]) == [2, 3]


def test_a_post_that_interrupts_a_nested_one_is_refused(writer: JournalWriter) -> None:
    """Signals that come faster than the disk answers would nest without end."""
    commit, depths = writer.log.commit, []

    def nest() -> None:
        depths.append(len(depths))
        try:
            if len(depths) < 10:
                writer.append_accepted(b"nested")
        except ReentrantAppendError:
            depths.append(-1)
        commit()

    writer.log.commit = nest  # type: ignore[method-assign]

    writer.append_accepted(b"outer")

    assert depths == [0, 1, -1]
    assert writer._group._depths == {}


def test_each_of_a_batch_gets_the_disks_error(writer: JournalWriter, commits: HeldCommits) -> None:
    reported: list[JournalError] = []
    writer.attach(on_failure=reported.append)
    others: list[Producer] = []

    def fail() -> None:
        others.extend(Producer(writer, b"other") for _ in range(3))
        until(lambda: pending(writer) == 3, "the others")
        raise OSError(5, "Input/output error")

    commits.first = fail

    with pytest.raises(JournalError, match="cannot be written: Input/output error"):
        writer.append_accepted(b"first")

    for other in others:
        other.end()
        assert isinstance(other.error, JournalError)
        assert "Input/output error" in str(other.error)
    assert reported == [writer.failure]
    assert writer.log._outstanding.keys() == {1}


def test_a_leader_waits_for_those_that_the_last_batch_has_woken() -> None:
    gathering = Gathering()
    gathering.synced(2 * TIMEOUT_S, 2)
    queue = [Append(b"1")]
    leader = threading.Thread(target=gathering.wait, args=(queue,), daemon=True)
    leader.start()
    until(lambda: gathering.is_on, "the leader's wait")

    queue.append(Append(b"2"))
    gathering.arrived(len(queue))

    leader.join(TIMEOUT_S)
    assert not leader.is_alive()


def test_a_leader_that_waits_in_vain_does_so_ever_more_rarely() -> None:
    gathering = Gathering()
    waits = 0
    for _ in range(100):
        gathering.synced(0.00002, 2)
        skips = gathering._skips
        gathering.wait([Append(b"1")])  # type: ignore[arg-type]
        waits += not skips

    assert 4 <= waits <= 6


# -- the gate at which a batch waits -----------------------------------------------------------------------------------


@both
def test_it_may_be_opened_again_while_others_pass(make: Callable[[], TurnGate]) -> None:
    gate = make()
    assert not gate.is_open

    in_threads(*[gate.open, gate.wait] * 8)

    assert gate.is_open


def test_it_may_be_opened_again_between_the_two_steps_of_one_that_passes() -> None:
    gate = TurnGate()
    gate.open()
    lock = gate._lock

    class Reopening:
        """The lock of a gate that is opened again as soon as a thread has it."""

        release = staticmethod(lock.release)

        def acquire(self) -> None:
            lock.acquire()
            gate.open()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    gate._lock = Reopening()  # type: ignore[assignment]

    gate.wait()

    assert not lock.locked()


@linux
def test_the_descriptor_is_closed_with_the_last_reference() -> None:
    gate = DescriptorGate()
    descriptor = gate._file.fileno()
    os.fstat(descriptor)

    del gate

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@linux
def test_without_a_descriptor_a_lock_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(shared_gate(), DescriptorGate)

    def refuse(*_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)

    assert type(shared_gate()) is TurnGate


# -- all orders --------------------------------------------------------------------------------------------------------


class OwnedLock(_baton.SteppedRLock):
    """A wait with a timeout is over at once."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout >= 0:
            _baton._step()
            return self._owner is None and super().acquire()
        return super().acquire(blocking)


class TimedLock(OwnedLock):
    _reentrant = False


class FakeLog:
    """Each call is some steps."""

    failure = None
    path = types.SimpleNamespace(name="fake")

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.synced = 0
        self.is_closed = False

    def append_accepted(self, lines: Sequence[bytes]) -> int:
        _baton._step()
        if self.is_closed:
            raise JournalError("closed")
        self.lines += lines
        return len(self.lines) - len(lines) + 1

    def commit(self) -> None:
        wanted = len(self.lines)
        _baton._step()
        self.synced = max(wanted, self.synced)

    def is_used_by_caller(self) -> bool:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preemptions", "producers", "later", "closes"),
    [
        (2, 2, 0, False),
        pytest.param(2, 3, 0, False, marks=pytest.mark.minutes),
        (1, 1, 1, False),
        pytest.param(1, 2, 1, False, marks=pytest.mark.minutes),
        (1, 2, 0, True),
        (1, 0, 1, True),
        pytest.param(1, 1, 1, True, marks=pytest.mark.minutes),
        pytest.param(1, 0, 2, True, marks=pytest.mark.minutes),
    ],
)
def test_no_post_waits_for_ever_in_any_order(
    monkeypatch: pytest.MonkeyPatch, preemptions: int, producers: int, later: int, closes: bool
) -> None:
    """Producers of both kinds, two events each, and a close."""
    stepped = {"Lock": TimedLock, "RLock": OwnedLock, "Thread": _baton.SteppedThread}
    for module in ("journal.group_commit", "journal.turns", "util.threads"):
        monkeypatch.setattr(f"dispatcher.{module}.threading", types.SimpleNamespace(**{**vars(threading), **stepped}))
    monkeypatch.setattr(group_commit, "shared_gate", TurnGate)
    monkeypatch.setattr(group_commit, "deque", _baton.SteppedDeque)
    monkeypatch.setattr(group_commit, "is_owned", lambda lock: lock._owner == threading.get_ident())
    for owner, names in (
        (GroupCommit, ("_waits", "_is_closing", "_has_ended")),
        (GroupCommit, ("_gate",)),
        (Append, ("is_done", "is_withdrawn", "place")),
        (TurnGate, ("is_open",)),
        (Gathering, ("is_on",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, _baton._SteppedField(owner, name), raising=False)

    def scenario(scheduler: _baton.Scheduler) -> None:
        _baton.prepare(scheduler)
        log = FakeLog()
        group = GroupCommit(log, commits=True, settle=lambda _: None, on_append=lambda: None)  # type: ignore[arg-type]
        ends: list[tuple[bytes, int]] = []

        def produce(name: bytes) -> None:
            for turn in (b"1", b"2"):
                try:
                    seq = group.append(name + turn)
                except JournalError:
                    seq = 0
                assert seq <= log.synced
                ends.append((name + turn, seq))

        class Told(LaterAppend):
            def end(self) -> None:
                assert self.error is not None or 0 < self.seq <= log.synced
                ends.append((self.line, self.seq))
                super().end()

            def tell(self) -> None:
                ends.append((b"told " + self.line, 0))

        def produce_later(name: bytes) -> None:
            group.append_later(Told(name + b"1"), wait=True)
            seq = 0
            try:
                seq = group.append(name + b"2")  # behind the other one
            except JournalError:
                assert closes
            assert name + b"1" in dict(ends)
            ends.append((name + b"2", seq))

        def close() -> None:
            log.is_closed = True
            group.close()

        for number in range(producers):
            scheduler.spawn(_baton.PRODUCER, lambda number=number: produce(b"p%d-" % number))  # type: ignore[misc]
        for number in range(later):
            scheduler.spawn("later", lambda number=number: produce_later(b"l%d-" % number))  # type: ignore[misc]
        if closes:
            scheduler.spawn("close", close)
        try:
            scheduler.run()
        except _baton.Stuck as stuck:
            # The writer waits for more, unless the log was closed.
            if closes or not str(stuck).startswith("never end: write-ahead-fake"):
                raise
        assert not group._pending
        assert not group.under_way
        assert len(ends) == 2 * producers + 3 * later
        logged = [line for line, seq in ends if seq]
        assert sorted(log.lines) == sorted(logged)
        assert all(log.lines[seq - 1] == line for line, seq in ends if seq)

    assert _baton.walk(scenario, preemptions) > 100
