"""Writing the event journal.

Threads: the handler thread makes rows (`seq` and `at` belong to it), and each `flush` appends one frame. While a
handler runs or none is needed, the journal's own thread (`Keeper`) writes the rows of the events before it, and syncs
and closes segments. In write-ahead mode producers append events (`group_commit`). `segment_log` has the files and their
locks.

`rows` and `transitions` are lists that the handler thread appends to, without a lock of ours. A thread that holds
`_taking` copies them, and removes what it has copied once that is in the log. Each is one call, which takes the list's
own lock, so a row is never missed. Transitions come before the row of their event, and are copied after the rows:

    handler thread    transitions += [of 7]   rows += [7]                  transitions += [of 8]
    journal's thread                                        rows.copy() = [7]                       transitions.copy()

It finds all transitions of event 7, and leaves the one of event 8, which is being handled.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from threading import get_ident
from types import MethodType
from typing import Any, Final, NoReturn, Protocol

from dispatcher.config import JournalConfig
from dispatcher.errors import ForkedProcessError, JournalError
from dispatcher.journal import keeper as keeping
from dispatcher.journal.format.columns import encode_rows
from dispatcher.journal.format.live_states import LastStates
from dispatcher.journal.format.outstanding import Accepted, Loss
from dispatcher.journal.format.schema import Kind, Row
from dispatcher.journal.group_commit import MOST_BYTES_IN_FRAME, GroupCommit
from dispatcher.journal.live_states import LiveStates, read_states
from dispatcher.journal.segment_log import SegmentLog
from dispatcher.journal.turns import LaterAppend
from dispatcher.service import Service, ServiceState
from dispatcher.util.foreign import id_text, text_of
from dispatcher.util.forks import OfParent, let_go_in_children
from dispatcher.util.functions import path_of, require_kind, require_plain
from dispatcher.util.threads import is_owned

_NOT_STARTED: Final = (ServiceState.NOTINITED, ServiceState.INITED)


def _ignore(*_: object) -> None: ...


class TransitionOrigin(Protocol):
    """What a transition belongs to: the event that the handler thread handles, or one in the hands of a coroutine."""

    def add_transition(
        self,
        machine: str,
        entity: str,
        from_state: str,
        event_type: str,
        to_state: str,
        *,
        valid: bool,
        data: str | None = None,
    ) -> None:
        """`data`: the text of the entity's data, if that changed."""


class _Owner:
    """The dispatcher that a writer is connected to. The journal's threads refer to this, not to the writer, so that a
    writer without a reference is released."""

    def __init__(self) -> None:
        # Both are set before the first row, under the writer's `_attaching`.
        self.dispatcher: Callable[[], object] = _ignore  # a weak reference; None: nothing is connected
        self.on_failure: Callable[..., Any] = _ignore

    def failed(self, error: JournalError) -> None:
        self.on_failure(error)


class JournalWriter:
    """Appends events and transitions to the journal in `path`.

    The folder must be new or empty. In write-ahead mode it can hold a journal, which is repaired if necessary and
    continued. `recovered` then has its accepted events that weren't handled.

    The handler thread adds an event in three steps. Before the handler runs, it sets `seq` and `at`, so that
    transitions made by the handler belong to the event. Each transition is a `TransitionRow`, as a plain tuple, in
    `transitions`, or a call of `transition`. After the handler, the thread appends an `EventRow`, as a plain tuple, to
    `rows`. It calls `flush` for `config.buffer_rows` rows, or when `flush_due_ns` has passed.

    When a frame can't be written, the journal ends there instead of having a gap, and `failure` has the reason. Under
    the `failure_policy` `stop`, this and all later calls raise JournalError. Under `continue`, the failure is logged
    once and later calls do nothing.

    A writer belongs to the process that created it. In a forked child its methods raise ForkedProcessError and touch no
    file. If you drop one without `close`, you lose the rows since the last flush, as in a crash.

    Raises:
        JournalError: the folder already has a journal, has another writer, or can't be written.
        JournalLossError: accepted events of an earlier writer are lost, and `config.on_loss` is `refuse`.
    """

    def __init__(self, path: Path | str, config: JournalConfig | None = None) -> None:
        self.path: Path = path_of(path).absolute()  # a daemon may change its directory later; read only
        self.config: JournalConfig = config if config is not None else JournalConfig()  # read only
        require_kind(self.config, "config", JournalConfig)
        self._commits = self.config.durability == "sync"  # an append waits for the disk
        self._flush_commits = self._commits and not self.config.write_ahead  # a flush does
        # Held while rows become a frame; before the log's locks. Re-entrant: a signal handler may close the journal.
        self._taking = threading.RLock()
        # Events since the last frame. The handler thread appends, a thread that holds _taking removes; the list stays
        # the same object, for callers have bound its methods.
        self.rows: list[Row] = []
        self.transitions: list[Row] = []  # made since then; handler thread appends, a holder of _taking removes
        self._kinds: dict[Kind, int] = {}  # numbered in the order of insertion; handler thread adds, any thread copies
        self._transition_kinds: dict[Kind, int] = {}  # as `_kinds`: handler thread adds, any thread copies
        self.flush_due_ns: int = 0  # by perf_counter_ns; rows are then flushed; handler thread writes, any reads
        self._virtual = False  # set before the first row
        self._attaching = threading.Lock()  # leaf lock
        self._owner = owner = _Owner()  # it says who may touch its fields
        self._live_states: dict[str, LiveStates] = {}  # by machine; complete before the first row
        self._settled: list[int] = []  # as `rows`, but any thread appends
        # Any thread may use these, which have locks of their own; all but `log` are replaced in a forked child. They do
        # not refer to the writer: once nothing else does, it releases them.
        self.log: SegmentLog = SegmentLog(self.path, self.config, owner.failed)
        self._keeper = keeper = keeping.Keeper(self.log, _weakly(self._write_late_rows))  # any thread
        settle, on_append = self._settled.append, keeper.after_append
        # Any thread.
        self._group = GroupCommit(self.log, commits=self._commits, settle=settle, on_append=on_append)
        self._dropped = weakref.finalize(self, _drop, self.log, self._group)  # detached in a forked child
        self._dropped.atexit = False  # the process ends: threads may still write
        let_go_in_children(self)
        recovered = self.log.recovered
        self.recovered: tuple[Accepted, ...] = recovered.accepted
        """Unhandled events accepted by an earlier writer, oldest first, for use before the start."""
        self.losses: tuple[Loss, ...] = recovered.losses
        """Accepted events of an earlier writer missing from all files (read only)."""
        for loss in self.losses:
            self._settled.extend(loss.seqs)  # the next start does not miss them
        self.seq: int = recovered.summary.next_seq - 1  # of the current event, or the last one; handler thread
        self.at = 0  # when that event's handling began: Unix ns on the run's clock; handler thread
        # The thread whose transitions belong to `seq`; 0: no event is in hand; None: no dispatcher is attached, and the
        # caller sets `seq`. Handler thread writes, any reads: no other thread finds its own number here.
        self.event_thread: int | None = None
        self._origin_elsewhere: Callable[[bool], TransitionOrigin | None] = _ignore  # set before the first row

    def attach(
        self,
        dispatcher: object = None,
        *,
        virtual: bool = False,
        on_failure: Callable[[JournalError], Any] = _ignore,
        origin_elsewhere: Callable[[bool], TransitionOrigin] | None = None,
    ) -> None:
        """Connect `dispatcher`, which alone uses the writer from then on.

        Call this before the first row, from any thread. Bound methods are held weakly: a dispatcher dropped before its
        start leaves the writer to another.

        `virtual`: the run's clock stands still while events are queued.
        `on_failure`: called once with the error, on the thread that met it.
        `origin_elsewhere`: `origin` for a caller on a thread other than `event_thread`, called with `is_made`.

        Raises:
            JournalError: the writer already has a dispatcher, or it's closed.
            TypeError: `on_failure` isn't callable, or a call of it runs nothing.
        """
        require_plain(on_failure, "on_failure", "takes the error")
        owner = self._owner
        if owner.dispatcher() is not None:
            gc.collect()  # a dispatcher that was dropped is in cycles, and may still be there
        with self._attaching:
            other = owner.dispatcher()
            if other is not None:
                raise JournalError(
                    f"{self.path}: this JournalWriter belongs to the dispatcher {_name_of(other)}, so "
                    f"{_name_of(dispatcher)} cannot use it. Open one for each dispatcher, each in a folder of its own."
                )
            if self.log.is_closed and self.log.failure is None:
                raise JournalError(f"{self.path}: the journal is closed; open another JournalWriter")
            if dispatcher is not None:
                owner.dispatcher = weakref.ref(dispatcher)
            self._virtual = virtual
            owner.on_failure = _weakly(on_failure)
            if origin_elsewhere is not None:
                self.event_thread, self._origin_elsewhere = 0, _weakly(origin_elsewhere)

    def restore_states(
        self, machine: str, ends: Collection[str], *, snapshot_transitions: int, snapshot_s: float
    ) -> LastStates:
        """Return the last states in the journal of a machine's entities, without those in one of the `ends`.

        It's a dict by entity. Its `data` is one too, of the text of the entity's data, for those that have any.

        From then on, the journal gets a snapshot of the states every `snapshot_transitions` or `snapshot_s`. The next
        start reads from the last one, and retention keeps what that needs. Call it once per machine, before the
        dispatcher starts.

        Raises:
            JournalError: the dispatcher has started, the machine's states are already restored, or a file of the
                journal can't be read.
        """
        self.check_restorable(machine)
        names = frozenset(ends)
        found = read_states(self.path, machine, names, self.seq + 1)
        self.keep_states(machine, LiveStates(self.log, found, names, every=snapshot_transitions, every_s=snapshot_s))
        return found.states.copy()

    def check_restorable(self, machine: str) -> None:
        """Check that a machine's states can be restored.

        Raises:
            JournalError: the dispatcher has started, or the machine's states are already restored.
        """
        dispatcher = self._owner.dispatcher()
        has_started = isinstance(dispatcher, Service) and not dispatcher.in_state(*_NOT_STARTED)
        if has_started or self.rows or self.transitions:
            raise JournalError(
                f"{self.path}: the states of {machine} cannot be restored once {_name_of(dispatcher)} has started; "
                "restore them before its start."
            )
        if machine in self._live_states:
            raise JournalError(f"{self.path}: the states of {machine} were restored already; do so once.")

    def keep_states(self, machine: str, live: LiveStates) -> None:
        """Make `live` follow the machine's transitions from now on. Call it before the start."""
        self._live_states[machine] = live

    def forget_recovered(self) -> None:
        """Release the recovered events once they're queued again."""
        self.recovered = ()

    def append_copies(self, lines: Sequence[bytes]) -> None:
        """Append unhandled events of other logs, before the start.

        On return they're on the disk, and `recovered` contains only them.

        Raises:
            JournalError: the disk failed, under any policy.
        """
        copies: list[Accepted] = []
        with self.log.failing(always=True):
            for frame in _frames_of(lines):
                first, segment = self.log.append_accepted(frame), self.log.segment
                copies += (Accepted(seq, segment, line) for seq, line in enumerate(frame, first))
                self.log.roll(if_due=True)
            self.log.commit()
        self.recovered = tuple(copies)

    def append_lines(self, lines: Sequence[bytes]) -> list[int]:
        """Append lines as `append_accepted` does, without waiting for the disk, and return their accepted seqs.

        Raises:
            JournalError: the disk failed, under any policy, or the journal is closed.
        """
        seqs: list[int] = []
        with self.log.failing(always=True):
            for frame in _frames_of(lines):
                first = self.log.append_accepted(frame)
                seqs += range(first, first + len(frame))
        return seqs

    def settle_on_disk(self, accepted_seqs: Iterable[int]) -> None:
        """Record these events, on the disk, as handled elsewhere.

        Call it before the start or, if no dispatcher writes rows here, on any thread.

        Raises:
            JournalError: the disk failed, under any policy.
        """
        self._settled.extend(accepted_seqs)
        with self.log.failing(always=True):
            self._append_rows()
            self.log.commit()

    @property
    def outstanding(self) -> int:
        """In write-ahead mode, the number of accepted events not yet recorded as handled or settled."""
        return self.log.outstanding

    @property
    def failure(self) -> JournalError | None:
        """The error that ended all writing, or None while the journal can be written."""
        return self.log.failure

    @property
    def is_failed(self) -> bool:
        """Whether the journal has ended because a frame couldn't be written."""
        return self.log.failure is not None

    # -- the handler thread ----------------------------------------------------------------------------------------

    def kind(self, dispatcher: str, event_class: str, event_type: str, outcome: str) -> int:
        """Return the number that represents this combination in `rows`."""
        return self._kinds.setdefault((dispatcher, event_class, event_type, outcome), len(self._kinds))

    def transition_kind(self, machine: str, from_state: str, event_type: str, to_state: str, *, valid: bool) -> int:
        """The same as `kind`, for `transitions`."""
        key = (machine, from_state, event_type, to_state, valid)
        kind = self._transition_kinds.get(key)
        if kind is None:
            kind = self._transition_kinds[key] = len(self._transition_kinds)
        return kind

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition of the caller's event, made or, with `valid=False`, rejected. Thread-safe.

        Raises:
            NoEventInHandError: the caller isn't handling an event of this journal's dispatcher.
        """
        self.origin().add_transition(
            machine, entity, from_state._name_, event_type._name_, to_state._name_, valid=valid
        )

    def origin(self, *, is_made: bool = False) -> TransitionOrigin:
        """Return the event for a transition made now by the caller. Thread-safe.

        `is_made`: the transition is already made, and its event, returned by an earlier `origin`, could have ended
            since.

        Raises:
            NoEventInHandError: the caller isn't handling an event of this journal's dispatcher.
        """
        thread = self.event_thread
        if thread is None or thread == get_ident():
            return self
        return self._origin_elsewhere(is_made) or self  # or: the dispatcher is gone

    def add_transition(
        self,
        machine: str,
        entity: str,
        from_state: str,
        event_type: str,
        to_state: str,
        *,
        valid: bool,
        data: str | None = None,
    ) -> None:
        """Add a transition of the current event, as in TransitionOrigin. Only for the handler thread."""
        kind = self.transition_kind(machine, from_state, event_type, to_state, valid=valid)
        if type(entity) is not str:
            entity = id_text(entity)
        self.transitions.append((kind, self.seq, entity, self.at, data))  # a TransitionRow

    def flush(self) -> None:
        """Write all rows, and close the segment if it's large or old enough.

        With durability `sync`, the rows are on the disk on return. In write-ahead mode the journal's thread syncs them
        soon after. After a crash before that, recovery redelivers their events.

        Call this only between events, to keep an event and its transitions in one frame.
        """
        has_rows = self._has_rows()
        with self.log.failing():
            if has_rows:
                self._append_rows()
            if self._flush_commits or (has_rows and self._keeper.is_sync_missed()):
                self.log.commit()
        if has_rows:  # also if the journal has failed: otherwise each event would try again
            self.flush_due_ns = time.perf_counter_ns() + keeping.FLUSH_DELAY_MS * 1_000_000
            self._keeper.watch()
        if self.log.is_due():
            self.log.roll(if_due=True)

    def flush_to_disk(self, *, amid_event: bool = False) -> None:
        """Flush, and sync the rows to the disk before returning, unless durability is `none`.

        `amid_event`: called while a handler has yielded to mail; its event's transitions stay buffered.

        Raises:
            JournalError: as `flush`.
        """
        with self.log.failing():
            self._append_rows(amid_event=amid_event)
            if self.config.durability != "none":
                self.log.commit()

    def idle(self) -> None:
        """Flush when no event is queued.

        Shortly after another flush this does nothing, and the journal's own thread writes the rows when they're due.
        """
        if (
            self._flush_commits
            or time.perf_counter_ns() >= self.flush_due_ns
            or (self._has_rows() and not self._keeper.ensure_running())
        ):
            self.flush()
            if self._keeper.is_missed():
                with self.log.failing():
                    self.log.commit()  # the last frames, which no later one may cover

    def close(self) -> None:
        """Write the buffered rows and close the segment. Idempotent.

        Raises:
            JournalError: the disk failed, and the policy is `stop`. The segment stays open.
        """
        try:
            if not self.log.is_closed:
                with self.log.failing():
                    if self._has_rows():
                        self._append_rows()
                    self.log.close()
        finally:
            self._group.close()
            self.log.release()

    def _has_rows(self) -> bool:
        return bool(self.rows or self.transitions or self._settled)

    def _append_rows(self, *, amid_event: bool = False) -> bool:
        """Append the rows as one frame; returns False if there are no rows. Any thread.

        `amid_event`: an event may be in hand, whose transitions stay. Rows that cannot be encoded stay as well: the
        handler thread meets the error between events.
        """
        with self._taking:
            events = self.rows.copy()
            transitions = self.transitions.copy()  # after the rows: see the module
            settled = self._settled.copy()
            is_taken = not amid_event
            try:
                first_seq = self.log.next_seq()  # only the holder of _taking appends rows: it cannot change meanwhile
                if amid_event:
                    while transitions and transitions[-1][1] >= first_seq + len(events):
                        transitions.pop()
                if not (events or transitions or settled):
                    return False
                # After the rows: each row's kind was numbered before it was appended.
                kinds, transition_kinds = self._kinds.copy(), self._transition_kinds.copy()
                among = list(transition_kinds)
                encoded = encode_rows(
                    events,
                    transitions,
                    first_seq,
                    list(kinds),
                    among,
                    virtual=self._virtual,
                    settled=settled,
                )
                is_taken = True
                self.log.append_rows(encoded)
                for live in self._live_states.values():
                    live.follow(transitions, among)
            finally:
                if is_taken:
                    del self.rows[: len(events)]
                    del self.transitions[: len(transitions)]
                    del self._settled[: len(settled)]
        self._keeper.ensure_running()
        return True

    def _write_late_rows(self) -> float | None:
        """On the journal's own thread: write the rows that the handler thread would have written by now, which is in a
        handler or waits. Returns in how many seconds rows may be due; None: no rows wait.

        Raises:
            JournalError: the disk failed, and the policy is `stop`.
        """
        late_ns = time.perf_counter_ns() - self.flush_due_ns - keeping.LATE_MS * 1_000_000
        if late_ns < 0:
            return -late_ns / 1e9
        has_written = False
        if self._has_rows():
            with self.log.failing():
                has_written = self._append_rows(amid_event=True)
                if has_written and self._flush_commits:
                    self.log.commit()
        return keeping.FLUSH_DELAY_MS / 1000 if has_written else None

    # -- any thread ------------------------------------------------------------------------------------------------

    def append_accepted(self, line: bytes) -> int:
        """In write-ahead mode, append an event, encoded as JSON, and return its accepted seq.

        With durability `sync`, the event is on the disk on return. Threads waiting at the same time share a frame and
        an fsync.

        Raises:
            JournalError: the disk failed, or the journal is closed. The event isn't in the log, or not certainly.
            ReentrantAppendError: the call interrupted its own thread's use of the journal, for example in a signal
                handler.
        """
        return self._group.append(line)

    def append_later(self, later: LaterAppend, *, wait: bool) -> None:
        """Append as `append_accepted` does, but notify `later` once the event is in the log or rejected.

        `wait`: if MOST_UNDER_WAY are in flight, block until this one has ended.
        """
        self._group.append_later(later, wait=wait)

    @property
    def under_way(self) -> Collection[object]:
        """The events of `append_later` in flight. Thread-safe."""
        return self._group.under_way

    def settle(self, accepted_seq: int) -> None:
        """With the next frame, record that an accepted event won't be handled, so recovery doesn't redeliver it."""
        if accepted_seq > 0:
            self._settled.append(accepted_seq)

    def settle_now(self, accepted_seq: int) -> None:
        """Record that an accepted event won't be handled. On return, the record is as durable as a post. Thread-safe.

        A call that interrupts its own thread's use of the journal, for example in a signal handler, records it with the
        next frame.

        Raises:
            JournalError: the disk failed, under any policy, or the journal is closed.
        """
        if accepted_seq <= 0:
            return
        self._settled.append(accepted_seq)
        if is_owned(self._taking) or self.log.is_used_by_caller():
            return
        with self.log.failing(always=True):
            self._append_settled()
            if self._commits:
                self.log.commit()

    def _append_settled(self) -> None:
        with self._taking:
            settled = self._settled.copy()
            if not settled:  # another thread has just appended them, with its rows
                return
            first_seq = self.log.next_seq()  # see `_append_rows`
            self.log.append_rows(encode_rows((), (), first_seq, (), (), virtual=self._virtual, settled=settled))
            del self._settled[: len(settled)]
        self._keeper.ensure_running()

    def is_writing_here(self) -> bool:
        """Whether the caller's thread writes a batch of accepted events, so that it must not wait for one of them."""
        return self._group.is_led_by_caller()

    def roll(self) -> None:
        """Close the segment and begin the next one, unless it's empty."""
        self.log.roll()

    def after_fork(self) -> None:
        """Make every method raise in a forked child. `log`, whose counts stay readable, does the same for itself."""
        self._dropped.detach()
        nothing: Any = OfParent(lambda: ForkedProcessError(str(self.path), self.path))
        self.rows = self.transitions = self._kinds = self._transition_kinds = self._settled = nothing
        self.event_thread, self._origin_elsewhere = 0, self._refuse
        self._taking = self._attaching = self._keeper = self._group = nothing

    def _refuse(self, _: bool) -> NoReturn:
        raise ForkedProcessError(str(self.path), self.path)


def _drop(segment_log: SegmentLog, group: GroupCommit) -> None:
    """Release what a dropped writer has used. Any thread, at any point of its work."""
    segment_log.drop()
    group.close()


def _name_of(dispatcher: object) -> str:
    return str(getattr(dispatcher, "name", None) or text_of(dispatcher))


def _weakly(call: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method, called as long as its object exists; any other callable unchanged."""
    if not isinstance(call, MethodType):
        return call
    method = weakref.WeakMethod(call)

    def call_if_there(*arguments: object) -> Any:
        bound = method()
        return bound(*arguments) if bound is not None else None

    return call_if_there


def _frames_of(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines, in lists that fit into a frame each."""
    rest = deque(lines)
    while rest:
        frame = [rest.popleft()]
        size = len(frame[0])
        while rest and size + len(rest[0]) <= MOST_BYTES_IN_FRAME:
            size += len(rest[0])
            frame.append(rest.popleft())
        yield frame
