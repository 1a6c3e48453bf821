"""Write-ahead: how accepted events get into the log, many of them in one frame and under one fsync.

A producer that waits (`append`) puts its event at the end of `_pending` and tries to become the leader. The leader
takes what is pending, writes it as one frame, and syncs. Meanwhile others queue up, which form the next batch. When the
leader is done, it wakes the first of them to lead, and then all producers of its own batch at once. So there are two
gates: the next leader's, opened first, and the batch's, opened for all others at once.

An event that no thread waits for (`append_later`) is led by the log's own thread, the writer, which starts with the
first of them: it alone takes such events from `_pending`, and so calls foreign code, in their order. A producer leads
no further than up to the first of them, and leaves the rest to the writer.

No wake-up is lost, because each thread writes before it looks at what the other has written:

    producer   appends, chooses its gate, then   tries to lead, looks at `is_done`, waits at the gate
    leader     sets `is_done`, then              reads the event's gate, opens it
    leader     gives up the leadership, then     looks at `_pending`, wakes the first
    writer     sets `_waits`, then               looks at `_pending`, waits for `_work`
    producer   appends, then                     reads `_waits`, releases `_work`

Producers that were just woken are about to post again. The leader waits for them as long as they come one shortly after
the other: they would otherwise form two groups that take turns, at half the rate.

A signal handler, or a `__del__` that the garbage collector runs, may post while its thread leads, waits for its turn,
or holds a lock of the log. It must not wait for its own thread, so its event goes into the log alone. Signals may come
faster than the disk answers, so nesting has an end:

    append -> signal: append, alone -> signal: append raises ReentrantAppendError

`append_later` waits for nothing there, and is always possible.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from itertools import repeat, starmap
from time import perf_counter
from typing import Final

from dispatcher.errors import JournalError
from dispatcher.journal.segment_log import SegmentLog
from dispatcher.journal.turns import Append, Gathering, LaterAppend, ReentrantAppendError, TurnGate, shared_gate
from dispatcher.util.registry import each_of
from dispatcher.util.threads import LazyThread, is_owned, release_anyhow

MOST_BYTES_IN_FRAME: Final = 1 << 20
"""A single event may exceed it."""
MOST_UNDER_WAY: Final = 4096
"""Events that `append_later` takes before it waits for one to be in the log."""


class GroupCommit:
    """The accepted events of one log. Any thread.

    `commits`: an event is accepted only when it is on the disk. `settle(seq)` records that an event in the log will not
    be handled. `on_append()` is called after a batch, with no lock held.
    """

    def __init__(
        self, log: SegmentLog, *, commits: bool, settle: Callable[[int], None], on_append: Callable[[], None]
    ) -> None:
        self._log = log  # never changes
        self._commits = commits  # never changes
        self._settle = settle  # never changes
        self._on_append = on_append  # never changes
        self._leading = threading.RLock()  # held by the leader; before the log's locks
        self._pending: deque[Append] = deque()  # any thread appends; the leader takes from the left, and puts back
        self.under_way: dict[LaterAppend, None] = {}
        """The LaterAppends that have not ended. Any thread adds one, the writer removes it."""
        # How deep each thread is in `append`; each thread touches its own item.
        self._depths: dict[int, int] = {}
        self._gathering = Gathering()
        self._gate: TurnGate | None = None  # where producers wait for the next batch; any thread replaces it
        self._opening: deque[TurnGate] = deque()  # of events that have ended; the leader appends, any thread opens them
        # Ended, and not reported yet; the writer appends and takes, or any thread once there is no writer.
        self._unreported: deque[LaterAppend] = deque()
        # Until it can be started, producers lead instead. The process may fork before its first use.
        self._writer = LazyThread(f"write-ahead-{log.path.name}")
        self._work = threading.Lock()  # held while the writer has nothing to do; any thread releases it
        self._work.acquire()
        self._waits = False  # the writer waits for `_work`; the writer writes, any thread reads
        self._is_closing = False  # set once, by the thread that closes the log
        self._has_ended = False  # the writer has ended: other threads lead instead; set once

    # -- producers: any thread -----------------------------------------------------------------------------------------

    def append(self, line: bytes) -> int:
        """Append one event and return its accepted seq; under `commits`, it is on the disk then.

        Raises:
            JournalError: the disk failed, or the journal is closed.
            ReentrantAppendError: the call has interrupted its own thread's use of the file.
        """
        if not (self._commits or self.under_way):
            return self._append_alone(line)
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        if depth > 1:
            raise ReentrantAppendError(f"{self._log.path}: the post interrupted another one that interrupted a third")
        try:
            self._depths[thread] = depth + 1
            # A nested post must not wait for its turn: the leader may wake the post that it has interrupted, to lead.
            is_alone = depth > 0 or self._is_nested()
            return self._append_alone(line) if is_alone else self._append_with_others(line)
        finally:
            self._depths[thread] = depth
            if not depth:
                del self._depths[thread]

    def _append_with_others(self, line: bytes) -> int:
        mine = Append(line)
        try:
            self._pending.append(mine)
            if self._gathering.is_on:
                self._gathering.arrived(len(self._pending))
            if len(self._pending) > 1:  # another thread leads, or is about to
                mine.place = self._choose_place(mine)
            while not mine.is_done:
                self._try_to_lead()
                if mine.is_done:
                    break
                if mine.place is None or mine.place.is_open:
                    mine.place = self._choose_place(mine)  # and try again: no leader has seen it before
                else:
                    mine.place.wait()
        except BaseException:  # a KeyboardInterrupt
            self._withdraw(mine)
            raise
        if mine.error is not None:
            raise mine.error
        return mine.seq

    def _choose_place(self, mine: Append) -> TurnGate:
        """Where a producer is to wait: for the leadership if its event is the first, otherwise with the others."""
        # A producer chooses again if its gate was opened for another batch. It waits alone then: at the next shared
        # gate it could again be woken with the wrong batch.
        if mine.place is not None:
            return TurnGate()
        try:
            if self._pending[0] is mine:
                return TurnGate()
        except IndexError:  # a leader has taken it
            pass
        gate = self._gate
        if gate is None or gate.is_open:
            gate = self._gate = shared_gate()
        return gate

    def append_later(self, later: LaterAppend, *, wait: bool) -> None:
        """Append an event, and call `later.end` and `later.tell` once it is in the log or refused.

        `wait`: if MOST_UNDER_WAY events are in flight, wait until this one has ended. Never raises for the journal. If
        a signal handler raises meanwhile, the event is withdrawn, and `later.is_sent` says who ends it.
        """
        # Before this thread looks whether another leads: one that gives up the leadership then looks at `is_lacking`.
        if self._writer.thread is None:
            self._writer.ensure(self._run)
        crowded = wait and len(self.under_way) >= MOST_UNDER_WAY and not self._is_nested() and not self._is_writer()
        if crowded:
            later.place = TurnGate()
        hand = [later]
        try:
            self.under_way[later] = None
            self._pending.extend(map(hand.pop, (0,)))  # one call of a function in C: it is in one of the two
            if self._waits:
                self._wake_writer()
            if self._has_ended or self._writer.is_lacking:
                self._lead_all()
            elif later.place is not None:
                later.place.wait()
        except BaseException:
            later.is_withdrawn = True  # before the next step: the writer looks at it once it has the event
            later.is_sent = not hand
            if hand:
                self.under_way.pop(later, None)
                raise
            # As `_wake_writer`, in one call in C: at the limit of recursion it works where the step above did.
            try:  # noqa: SIM105 - `suppress` would need more of the stack
                self._work.release()
            except RuntimeError:
                pass
            raise

    def is_led_by_caller(self) -> bool:
        """Whether this thread writes a batch: it must not wait for an event of it."""
        return is_owned(self._leading)

    def close(self) -> None:
        """The log was closed: end the writer once it has refused what is pending. Any thread; does not wait."""
        self._is_closing = True
        if self._writer.thread is None:
            self._has_ended = True
        self._wake_writer()

    def _is_nested(self) -> bool:
        """A signal handler or a `__del__` posts while its thread leads or holds a lock: it must not wait."""
        return is_owned(self._leading) or self._log.is_used_by_caller()

    def _is_writer(self) -> bool:
        return threading.current_thread() is self._writer.thread

    def _append_alone(self, line: bytes) -> int:
        log = self._log
        try:
            seq = log.append_accepted((line,))
            if self._commits:
                log.commit()
        except OSError as error:
            log.fail(error)
            assert log.failure is not None
            raise log.failure from error
        self._on_append()
        return seq

    def _withdraw(self, mine: Append) -> None:
        """The producer does not wait any longer. Its event may be in the log: then it is not to be handled."""
        mine.is_withdrawn = True  # before the look: the leader sets `is_done` and then looks at this
        if mine.is_done and mine.error is None:
            self._settle(mine.seq)
        self._hand_over()  # it may have been woken to lead
        if mine.is_done:
            mine.wake()  # it may have closed its gate for a moment, to pass
        self._open_gates()

    # -- leading -------------------------------------------------------------------------------------------------------

    def _try_to_lead(self) -> None:
        """Lead one batch, unless another thread leads."""
        has_led = failed = False
        try:
            has_led = self._leading.acquire(False)
            if has_led:
                failed = self._lead(laters=self._is_writer())
        finally:
            # Not `has_led`: a signal handler may have raised just behind the acquire.
            if is_owned(self._leading):
                self._leading.release()
        if has_led:
            self._has_led(failed)

    def _has_to_lead(self) -> bool:
        """Whether something is pending and no thread leads; a thread that leads hands over. The writer calls this."""
        if not self._pending or not self._leading.acquire(False):
            return False
        self._leading.release()
        return True

    def _lead_all(self) -> None:
        """Lead until nothing is pending or another thread leads. The writer, or any thread once it has ended."""
        # A thread that leads meanwhile looks at what is pending once it has given up the leadership.
        while self._pending and self._leading.acquire(False):
            try:
                failed = self._lead(laters=True)
            finally:
                self._leading.release()
            self._has_led(failed)
        while self._unreported:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._unreported.popleft().tell()

    def _has_led(self, failed: bool) -> None:
        """Called with the leadership given up."""
        # First the next leader: the disk should not wait for the producers of this batch.
        if self._pending:
            self._hand_over()
        self._open_gates()
        if failed:
            self._log.report()
        self._on_append()

    def _hand_over(self) -> None:
        """Wake the first that is pending, to lead."""
        for first in each_of(self._pending):
            if first.is_done:  # an interrupted leader has put it back
                first.wake()
                continue
            if first.is_later:
                if self._has_ended or self._writer.is_lacking:
                    self._lead_all()
                else:
                    self._wake_writer()
                return
            if not first.is_withdrawn:
                first.wake()
                return

    def _open_gates(self) -> None:
        """Wake the producers whose events have ended. Any thread."""
        while self._opening:
            with contextlib.suppress(IndexError, ValueError):  # another thread has opened it, too
                gate = self._opening[0]
                gate.open()
                self._opening.remove(gate)

    def _lead(self, *, laters: bool) -> bool:
        """Write one batch; returns whether the log has failed by it. The leader."""
        batch: deque[Append] = deque()
        try:
            if self._commits and not self.under_way:
                self._gathering.wait(self._pending)
            batch.extend(self._taken(laters))
            self._gate = None
            return self._write(batch)
        except BaseException:  # a signal handler has raised: the next leader goes on with the rest
            self._pending.extendleft(reversed(batch))
            self._open_gates()
            raise

    def _taken(self, laters: bool) -> starmap[Append]:
        """An iterator that takes the next batch from `_pending`, all of it in one step."""
        count = size = 0
        for entry in each_of(self._pending):  # the leader alone takes any
            if (entry.is_later and not laters) or size >= MOST_BYTES_IN_FRAME:
                break
            count += 1
            size += len(entry.line)
        return starmap(self._pending.popleft, repeat((), count))

    def _write(self, batch: deque[Append]) -> bool:
        """Write and sync the batch, end its events and empty it. Returns whether the log has failed."""
        log, failed = self._log, False
        error: JournalError | None = None
        # One that an interrupted leader had written has its seq.
        wanted = [entry for entry in batch if entry.seq or entry.begin()]
        new = [entry for entry in wanted if not entry.seq]
        try:
            if new:
                seq = log.append_accepted([entry.line for entry in new])
                for entry in new:
                    entry.seq = seq
                    seq += 1
            if self._commits and wanted:
                started_s = perf_counter()
                log.commit()
                self._gathering.synced(perf_counter() - started_s, len(batch) + len(self._pending))
        except OSError as raised:
            failed, error = log.end(raised), log.failure
            assert error is not None
            error.__cause__ = raised
        except JournalError as raised:
            error = raised
        last: TurnGate | None = None
        while batch:
            entry = batch[0]
            entry.error = error
            entry.end()
            if entry.place is not None and entry.place is not last:
                last = entry.place
                self._opening.append(last)
            if isinstance(entry, LaterAppend):
                self.under_way.pop(entry, None)
                self._unreported.append(entry)
            elif entry.is_withdrawn and entry.seq and error is None:
                self._settle(entry.seq)
            batch.popleft()
        return failed

    # -- the writer ----------------------------------------------------------------------------------------------------

    def _wake_writer(self) -> None:
        release_anyhow(self._work)  # it may have been woken before

    def _run(self) -> None:
        while not self._is_closing:
            self._waits = True
            # Look at `_pending` only after setting it: a producer that appended before saw no writer waiting.
            if not self._is_closing and not self._has_to_lead():
                self._work.acquire()
            self._waits = False
            self._lead_all()
        self._has_ended = True
        self._lead_all()  # what came before a producer saw that
