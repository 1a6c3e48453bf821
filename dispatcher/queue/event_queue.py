"""The queue between producers on any thread and one handler thread, and how it is shut.

Posting is an append to a deque, which is atomic in CPython, and then a look at one flag (`alert`). Who finds it set
looks closer: wakes the handler thread, or, if that has stopped meanwhile, takes back what was appended. To look first
and append then would strand an event between a stop and a post (invariant 2).

    RUNNING -> DRAINING (posts from outside are refused, those of handlers accepted) -> STOPPED -> ABANDONED, never back

The handler thread ends when it finds the queue empty under the lock *after* it has set STOPPED: an append before that
is seen there, an append after it sees STOPPED. So every event is handled, discarded or refused, and only one of these.
ABANDONED is the queue of a stop that does not wait for its events, or no longer: posts of handlers are refused, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from time import perf_counter_ns, sleep
from typing import Any, Final, Literal

from dispatcher.config import DispatcherConfig
from dispatcher.errors import ForkedProcessError, QueueFullError
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.monitor import QueueSizeLog
from dispatcher.queue.room import QueueRoom
from dispatcher.stats import snapshot

RUNNING: Final = 0  # plain ints: comparing members of an Enum's int flavour runs Python code on the hot path
DRAINING: Final = 1
STOPPED: Final = 2
ABANDONED: Final = 3
FORKED: Final = 4  # this is a copy in a child process, whose handler thread stayed with the parent

OPEN: Final = 0  # what a post does before the append: nothing,
STAMP: Final = 1  # note the time, unless the handler thread waits for it,
STAMP_ALL: Final = 2  # note the time in any case,
LOOK: Final = 3  # or look closer

KeyOf = Callable[[Any], Hashable]
ClassAndKey = tuple[type, Hashable]
Times = Literal["all", "sampled", "none"]
DropReason = Literal["stop", "drop_oldest", "superseded"]


class InQueue(Enum):
    """The `type` of queue entries that are not events themselves, by which the handler thread tells them."""

    ENTRY = 1


class QueuedEvent:
    """Stands in the queue for an event of which more is to be known than the event itself."""

    __slots__ = ("accepted_seq", "enqueued_ns", "event", "is_superseded", "key")

    type = InQueue.ENTRY

    def __init__(self, event: Any, enqueued_ns: int, key: ClassAndKey | None = None, accepted_seq: int = 0) -> None:
        self.event = event  # with a key: replaced by a newer one under the queue's lock
        self.enqueued_ns = enqueued_ns  # of perf_counter_ns; 0: not measured
        self.is_superseded = False  # the event is not that of the post which made this entry; under the queue's lock
        self.key = key  # None: nothing supersedes it
        self.accepted_seq = accepted_seq  # in the write-ahead log; 0: not there; with a key as `event`


def event_of(entry: Any) -> Any:
    """The event that a queue entry is or stands for."""
    return entry.event if type(entry) is QueuedEvent else entry


class _Flags:
    """What each post looks at. An object of its own: slots are quicker to read than one attribute of many."""

    __slots__ = ("alert", "gate", "phase", "woken_ns")

    def __init__(self) -> None:
        self.gate = OPEN  # before the append; written under the queue's lock
        self.alert = False  # after the append: the handler thread waits, or not RUNNING; written under the queue's lock
        self.phase: int = RUNNING  # never goes back; written under the queue's lock
        self.woken_ns = 0  # when a post woke the handler thread; written by that post, reset by the handler thread


class EventQueue:
    """Events on their way to the thread that owns `mailbox`. Posts from that thread are never refused while it runs.

    `post(event) -> bool` is for any thread: True if the event was accepted, False if it was refused, which `rejected`
    counts by reason (full, timeout, draining, stopped). `on_size(size, remaining)` hears of the size of a queue that
    is full.

    Raises (from `post`):
        ForkedProcessError: this process is a fork of the one in which the dispatcher was made.
    """

    def __init__(
        self,
        name: str,
        mailbox: TaskMailbox,
        config: DispatcherConfig,
        *,
        times: Times,
        is_inside: Callable[[], bool],
        on_size: QueueSizeLog,
        accept: Callable[[Any], int] | None = None,
        settle: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`accept(event)` puts an event in the write-ahead log and returns its accepted seq, 0: it could not be; on the
        producer's thread, which may wait in it. `settle(accepted_seq)`: that one will never be handled."""
        self._name = name
        self._mailbox = mailbox
        self._full_policy = config.queue_full_policy
        self._is_inside = is_inside  # whether the caller is a handler thread, whose posts are not refused or held up
        self._on_size = on_size
        self._accept, self._settle = accept, settle
        self._parked = mailbox._parked
        self.entries: deque[Any] = deque()  # any thread appends; the handler thread takes from the left
        self._lock = threading.Lock()  # leaf lock
        self.room = QueueRoom(config, self._lock, lambda: self.flags.phase != RUNNING)
        self._lingers = False  # written under _lock
        self._samples = times == "sampled"
        self._stamping = times != "none"  # the next post notes its time; written under _lock
        self._keys: dict[type, KeyOf] = {}  # replaced under _lock, never changed
        self._superseding: dict[ClassAndKey, QueuedEvent] = {}  # guarded by _lock: queued, by class and key
        self.flags = _Flags()
        self._set_gate()
        self._ended = False  # guarded by _lock: the handler thread takes nothing any more
        self.rejected: defaultdict[str, int] = defaultdict(int)  # posts refused, by reason; guarded by _lock
        self.dropped: defaultdict[DropReason, int] = defaultdict(int)  # accepted, never handled; guarded by _lock
        self._after_append = self._make_after_append()
        self.post = self._make_post()

    @property
    def capacity(self) -> int | None:
        return self.room.capacity

    @property
    def phase(self) -> int:
        """RUNNING and so on, in the order of their definition; never goes back."""
        return self.flags.phase

    def remaining(self) -> int | None:
        """How many more events fit; None: no bound."""
        return None if self.room.capacity is None else len(self.room.permits)

    @property
    def discarded(self) -> int:
        """Events that were accepted and will never be handled."""
        return sum(snapshot(self.dropped.copy).values())

    def contents(self) -> dict[Enum, int]:
        """How many events of each type wait; what is no proper event is left out. Any thread."""
        counts: dict[int, int] = defaultdict(int)  # by identity: hashing an Enum member runs Python code
        types: dict[int, Any] = {}
        for entry in snapshot(self.entries.copy):
            event_type = getattr(event_of(entry), "type", None)
            counts[id(event_type)] += 1
            types[id(event_type)] = event_type
        return {types[key]: count for key, count in counts.items() if isinstance(types[key], Enum)}

    # -- producers: any thread ----------------------------------------------------------------------------------

    def _make_post(self) -> Callable[[Any], bool]:
        flags, append, after_append, post_gated = self.flags, self.entries.append, self._after_append, self._post_gated
        parked, stamped, now_ns = self._parked, self._stamped, perf_counter_ns
        take_permit, post_full = self.room.permits.pop, self._post_full

        def post(event: Any) -> bool:
            if flags.gate:
                if flags.gate is STAMP:
                    if not parked:
                        event = stamped(event)
                elif flags.gate is LOOK:
                    return post_gated(event)
                else:
                    event = QueuedEvent(event, now_ns())
            append(event)
            if flags.alert:
                return after_append(event)
            return True

        def post_bounded(event: Any) -> bool:
            if flags.gate is LOOK:
                return post_gated(event)
            try:
                take_permit()
            except IndexError:
                return post_full(event)
            if flags.gate and (flags.gate is STAMP_ALL or not parked):
                event = stamped(event)
            append(event)
            if flags.alert:
                return after_append(event)
            return True

        return post if self.room.capacity is None else post_bounded

    def _stamped(self, event: Any) -> QueuedEvent:
        """The event with the time of its post."""
        if self._samples:
            self._set_stamping(False)
        return QueuedEvent(event, perf_counter_ns())

    def _post_gated(self, event: Any, wait: bool = True) -> bool:
        """Post with a closer look: the queue does not run any more, or the entry is more than the event."""
        phase = self.flags.phase
        if phase != RUNNING:
            if phase == FORKED:
                raise ForkedProcessError(self._name)
            # A handler is never refused while its thread works: it finishes its work (invariant 9).
            if phase == ABANDONED or self._ended or not self._is_inside():
                return self._reject(self._why_shut())
        if self._keys:
            event_class = getattr(event, "type", None).__class__
            key_of = self._keys.get(event_class)
            if key_of is not None:
                key = key_of(event)
                if key is not None:
                    return self._post_keyed(event, (event_class, key), wait)
        if self._has_no_room(wait):
            return False
        if self._accept is not None:
            accepted_seq = self._log(event)
            return bool(accepted_seq) and self._append(QueuedEvent(event, perf_counter_ns(), None, accepted_seq))
        return self._append(self._stamped(event) if self._stamping else event)

    def _log(self, event: Any) -> int:
        """Put the event in the write-ahead log; 0: it could not be, and is refused. Its permit is given back then."""
        assert self._accept is not None
        accepted_seq = 0
        try:
            accepted_seq = self._accept(event)
        finally:
            if not accepted_seq and self.room.capacity is not None:
                self.room.give_back()
        if not accepted_seq:
            self._reject(self._why_not_logged())
        return accepted_seq

    def _why_not_logged(self) -> str:
        return "journal" if self.flags.phase == RUNNING else self._why_shut()

    def _post_full(self, event: Any) -> bool:
        """Post where no permit was left."""
        return self._make_room(wait=True) and self._append(self._stamped(event) if self._stamping else event)

    def _append(self, entry: Any) -> bool:
        self.entries.append(entry)
        return self._after_append(entry) if self.flags.alert else True

    def _post_keyed(self, event: Any, key: ClassAndKey, wait: bool) -> bool:
        """Put the event in the place of the queued one of its key, or at the end of the queue."""
        accepted_seq = 0
        if self._accept is not None:
            # First of all: what it supersedes is settled only once it is in the log itself.
            accepted_seq = self._accept(event)
            if not accepted_seq:
                return self._reject(self._why_not_logged())
        return self._enqueue_keyed(event, key, wait, accepted_seq)

    def _enqueue_keyed(self, event: Any, key: ClassAndKey, wait: bool, accepted_seq: int) -> bool:
        if self._supersede(event, key, accepted_seq):
            return True
        refused = True
        try:
            refused = self._has_no_room(wait)
        finally:
            if refused:
                self._settle(accepted_seq)
        if refused:
            return False
        with self._lock:
            # Look again and append under one lock: of two first events of a key, one supersedes the other.
            first = key not in self._superseding
            if first:
                stamped_ns = perf_counter_ns() if self._stamping and not self._parked else 0
                entry = QueuedEvent(event, stamped_ns, key, accepted_seq)
                self._superseding[key] = entry
                self.entries.append(entry)
        if not first:
            if self.room.capacity is not None:
                self.room.give_back()
            return self._enqueue_keyed(event, key, wait, accepted_seq)
        return self._after_append(entry) if self.flags.alert else True

    def _supersede(self, event: Any, key: ClassAndKey, accepted_seq: int) -> bool:
        with self._lock:
            queued = self._superseding.get(key)
            if queued is None:
                return False
            queued.event = event
            self._settle(queued.accepted_seq)
            queued.accepted_seq = accepted_seq
            queued.is_superseded = True
            if self._stamping:
                queued.enqueued_ns = perf_counter_ns()
            self.dropped["superseded"] += 1
            return True

    def _has_no_room(self, wait: bool) -> bool:
        """Take a permit if the queue is bounded; True if the post is refused for want of one."""
        return self.room.capacity is not None and not self.room.try_take() and not self._make_room(wait)

    def _make_room(self, wait: bool) -> bool:
        """No permit is left: wait for one, drop the oldest event or refuse, as the policy says; False if refused."""
        if self._is_inside():
            self.room.overdraw()
            return True
        self._on_size(len(self.entries), 0)
        if self._full_policy == "reject":
            return self._reject("full")
        if self._full_policy == "drop_oldest":
            self._drop_oldest()
            return True
        if not wait:
            raise QueueFullError(self._name, self.room.capacity or 0)
        answer = self.room.wait_and_take()
        if answer == "permit":
            return True
        return self._reject(answer if answer == "timeout" else self._why_shut())

    def _why_shut(self) -> str:
        return "draining" if self.flags.phase == DRAINING else "stopped"

    def _drop_oldest(self) -> None:
        """Get a permit, or the place of the oldest event."""
        while True:
            with self._lock, contextlib.suppress(IndexError):
                if self.room.try_take():
                    return
                if self.flags.phase != RUNNING:  # there may be nobody any more who gives one back
                    return
                self._drop(self.entries.popleft(), "drop_oldest")
                return
            # The handler thread has taken the last event and is about to give back its permit.
            sleep(0)

    def _drop(self, entry: Any, reason: DropReason) -> None:
        """Under _lock: an accepted event, which was taken out, will never be handled: not by this dispatcher."""
        self.dropped[reason] += 1
        self._forget(entry)
        if reason != "stop":  # what a stop leaves behind is handled after the next start
            self._settle_entry(entry)

    def _settle_entry(self, entry: Any) -> None:
        if type(entry) is QueuedEvent:
            self._settle(entry.accepted_seq)

    def _make_after_append(self) -> Callable[[Any], bool]:
        """What a post does that finds an alert: its entry is in the queue, and the handler thread waits or stops."""
        flags, take_duty, after_shut = self.flags, self._parked.pop, self._after_shut
        release, release_anyhow = self._mailbox._parking.release, self._mailbox.release_anyhow

        def after_append(entry: Any) -> bool:
            try:
                take_duty()  # who gets it, and nobody else, wakes the handler thread
                # Reset before the release: until then the handler thread cannot end, so that nobody who sees no alert
                # in between is stranded.
                flags.alert = False
                flags.woken_ns = perf_counter_ns()
                if flags.phase != RUNNING:
                    flags.alert = True
                release()
            except IndexError:
                pass
            except BaseException as error:  # KeyboardInterrupt, perhaps with the duty taken
                release_anyhow()
                if not isinstance(error, RuntimeError):  # that is of a release too many
                    raise
            return flags.phase == RUNNING or after_shut(entry)

        return after_append

    def _after_shut(self, entry: Any) -> bool:
        """The entry is in a queue that is DRAINING or STOPPED: there may be nobody any more who takes it."""
        if self.flags.phase >= STOPPED and not self._mailbox.is_mailbox_thread():
            return not self._take_back(entry)
        return True

    def _take_back(self, entry: Any) -> bool:
        """Remove the entry, counted as refused, unless somebody else has; says whether that was done.

        Only atomic steps on the queue's ends: the handler thread of an aborted stop may still take from the left.
        """
        with self._lock:
            others, found = [], False
            with contextlib.suppress(IndexError):
                while not found:
                    last = self.entries.pop()
                    found = last is entry
                    if not found:
                        others.append(last)
            self.entries.extend(reversed(others))
            if found and type(entry) is QueuedEvent and (entry.is_superseded or entry.accepted_seq > 0):
                # Superseded by one whose post has been accepted: that one is discarded, and ours was accepted, too. Or
                # in the write-ahead log, which may have ended: the next start handles it, so it is no refused one.
                self._drop(entry, "stop")
                return False
            if found:
                self._forget(entry)
                self.rejected["stopped"] += 1
            return found

    def _reject(self, reason: str) -> bool:
        with self._lock:
            self.rejected[reason] += 1
        return False

    def post_without_waiting(self, event: Any) -> bool:
        """As `post`, but where that would wait for room: raises QueueFullError, and nothing is done. Any thread."""
        return self._post_gated(event, wait=False)

    def wake(self) -> None:
        """Have the handler thread look at the queue if it waits. Any thread; never blocks."""
        self._mailbox.unpark()

    # -- the handler thread -------------------------------------------------------------------------------------

    def calm(self) -> None:
        """The handler thread was not woken by a post: let posts go their quick way again."""
        self.flags.alert = False
        if self.flags.phase != RUNNING:  # set before the alert, so one of the two is seen
            self.flags.alert = True

    def close(self, entry: QueuedEvent) -> None:
        """The entry, which was taken out, has a key: from now on nothing supersedes it."""
        with self._lock:
            self._forget(entry)

    def _forget(self, entry: Any) -> None:
        """Under _lock: the entry is not queued any more."""
        if type(entry) is QueuedEvent and entry.key is not None:
            self._superseding.pop(entry.key, None)

    def stamp_again(self) -> None:
        """The next post notes its time. When sampling: else all of them do, or none."""
        if self._samples and not self._stamping:
            self._set_stamping(True)

    def _set_stamping(self, stamping: bool) -> None:
        with self._lock:
            self._stamping = stamping
            self._set_gate()

    def supersede_by(self, event_class: type, key_of: KeyOf) -> None:
        """Events of the class supersede queued ones of the same key from now on. Any thread."""
        with self._lock:
            self._keys = {**self._keys, event_class: key_of}
            self._set_gate()

    def _set_gate(self) -> None:
        """Under _lock."""
        if self.flags.phase != RUNNING or self._keys or self._accept is not None:
            self.flags.gate = LOOK
        else:
            self.flags.gate = OPEN if not self._stamping else STAMP if self._samples else STAMP_ALL

    def take_last(self) -> Any | None:
        """After STOPPED: the next entry, or None once and for all if there is none.

        Under the lock, as is the taking back, so that each entry goes one way.
        """
        with self._lock:
            if self.entries and not self._ended:
                return self.entries.popleft()
            self._ended = True
            return None

    def put_first(self, events: Sequence[tuple[int, Any]]) -> None:
        """Before the start: accepted seqs and events of the write-ahead log, to be handled before all others."""
        now_ns = perf_counter_ns()
        if self.room.capacity is not None:
            for _ in events:
                if not self.room.try_take():
                    self.room.overdraw()
        self.entries.extendleft(QueuedEvent(event, now_ns, None, seq) for seq, event in reversed(events))

    def end(self) -> None:
        """The handler thread takes nothing any more, however it ended."""
        self.shut(STOPPED)
        with self._lock:
            self._ended = True

    # -- stopping: any thread -----------------------------------------------------------------------------------

    def is_ending(self) -> bool:
        """The handler thread ends once the queue is empty. One that lingers waits, while DRAINING, for others."""
        return self.flags.phase >= STOPPED or (self.flags.phase == DRAINING and not self._lingers)

    def shut(self, phase: int, *, lingers: bool = False) -> None:
        """Refuse posts from outside from now on. See `is_ending` for `lingers`."""
        with self._lock:
            self._shut(phase, lingers)
        self.room.tell()

    def _shut(self, phase: int, lingers: bool) -> None:
        """Under _lock."""
        self._lingers = lingers  # first: who reads the phase without the lock must not take a joint drain for an end
        self.flags.phase = max(self.flags.phase, phase)
        self.flags.gate, self.flags.alert = LOOK, True

    @staticmethod
    def end_together(queues: Sequence[EventQueue], is_at_rest: Callable[[], bool]) -> bool:
        """End all the queues at one moment, if all are empty and their handler threads at rest; says whether they were.

        One by one, an event that is still on its way to one of them could post to another that has ended.
        """
        with contextlib.ExitStack() as locks:
            for queue in queues:
                locks.enter_context(queue._lock)
            if any(queue.entries for queue in queues) or not is_at_rest():
                return False
            for queue in queues:
                queue._shut(STOPPED, lingers=False)
                queue._ended = True
            return True

    def discard(self) -> list[Any]:
        """Take out, count and return what is queued. For a stop that does not, or no longer, wait for the handlers."""
        left: list[Any] = []
        with self._lock, contextlib.suppress(IndexError):
            while True:
                entry = self.entries.popleft()
                self._drop(entry, "stop")
                left.append(event_of(entry))
        return left

    def after_fork(self) -> None:
        """In a child process: locks that other threads held are held for ever, so take new ones; accept nothing."""
        self._lock = threading.Lock()
        self.flags.phase = FORKED
        self.flags.gate, self.flags.alert = LOOK, True
