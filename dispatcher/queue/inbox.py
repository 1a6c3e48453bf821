"""Every way in: how an event gets into the queue between producers on any thread and one handler thread.

The plain post is a closure: an append, and a look at one flag. Every other post runs in plain words: it takes a permit,
writes its event ahead, and enters the queue under `lock`. Nobody holds that lock while waiting for room or for the
disk. Under it foreign code runs in one place only: keys are compared. They were hashed before.

**Post and sleep.** The handler thread sets `alert` (H1), and takes a last look, which is a `popleft` (H2). A plain post
appends (P1), and reads `alert` (P2). The deque's own lock puts P1 and H2 in an order. If P1 comes first, H2 has the
event. If H2 comes first, then H1 does as well, and P2 sees the alert. Whoever resets it before the handler thread is
awake opens the gate afterwards, so another look follows.

**Post and end.** Under `lock`, the handler thread or a stop sets STOPPED (E1), and takes a last look (E2). If P1 comes
before E2, the event is handled or discarded. Otherwise P2 sees the alert, which stays up, and the producer takes its
event back under the same lock. An Entry is queued under the lock, after a look at the phase, so it is never stranded.

**Interrupts.** A signal handler, a `__del__` or a weak reference's callback may post while its thread is inside another
post. If that has the lock, the event goes to `side`, from where the handler thread brings it in. What a signal handler
raises comes out behind a call; then `Entry.state` says how far the post has got (`undo_or_finish`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import starmap
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.errors import ForkedProcessError
from dispatcher.event import KeyOf
from dispatcher.journal.turns import ReentrantAppendError
from dispatcher.mailbox.parking import SIGNAL
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.contents import QueueContents
from dispatcher.queue.entry import (
    HELD,
    IN_HAND,
    NEW,
    OVER,
    OWN,
    QUEUED,
    RETRYING,
    STAMPED,
    AskFuture,
    ClassAndKey,
    Delivery,
    DropReason,
    Entry,
)
from dispatcher.queue.flags import ABANDONED, DRAINING, FORKED, LOOK, RUNNING, STOPPED, PostFlags, Stamping, Times
from dispatcher.queue.override import PostOverride
from dispatcher.queue.room import QueueRoom
from dispatcher.queue.shutdown import QueueShutdown
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.util.foreign import reraise_interrupt, tell, text_of, type_of
from dispatcher.util.threads import is_owned

if TYPE_CHECKING:
    from dispatcher.config import DispatcherConfig

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

_ONCE: Final = ((),)


class PostSteps(NamedTuple):
    """The steps of `post` in `Inbox._make_post`."""

    flags: PostFlags
    append: Callable[[Any], None]
    post: Callable[[Any], bool]
    after: Callable[[Any], bool]
    knock: Callable[[bytes], Any]


class Inbox:
    """Events on their way to the thread that owns `mailbox`. Posts from that thread are never refused while it runs.

    `post(event) -> bool` is for any thread: True if the event was accepted, False if it was refused. `rejected` counts
    refusals by reason: full, timeout, draining, stopped, journal, reentrant. `is_inside()`: the caller is a handler,
    whose posts are neither refused nor delayed. `on_size(size, remaining)` is called when the queue is full.

    Raises (from `post`):
        ForkedProcessError: this process is a fork of the one that made the dispatcher.
    """

    def __init__(
        self,
        name: str,
        mailbox: TaskMailbox,
        config: DispatcherConfig,
        *,
        times: Times,
        is_inside: Callable[[], bool],
        on_size: Callable[[int, int | None], None],
        write_ahead: WriteAhead,
    ) -> None:
        self.name = name  # never changes, like all fields that do not say otherwise
        self._is_inside = is_inside
        self.write_ahead = write_ahead
        self._parking = mailbox.parking  # where the handler thread waits
        self.lock: threading.RLock = threading.RLock()  # see above; any thread; replaced in a forked child
        # A leaf that its futures share; replaced in a forked child; any thread.
        self.answered: threading.Condition = threading.Condition()
        self.entries: deque[Any] = deque()  # any thread appends; the handler thread takes from the left
        # Entries of posts that have interrupted one of their own thread; any thread appends, the handler thread takes.
        self.side: deque[Entry] = deque()
        self.flags: PostFlags = PostFlags()  # its fields say who may touch them
        self.rejected: dict[str, int] = {}  # posts refused, by reason; guarded by the lock
        self.last_rejected: dict[str, Any] = {}  # the type of the last event of each; guarded by the lock
        self.dropped: dict[str, int] = {}  # accepted events that are never handled, by DropReason; guarded by the lock
        # Withdrawn events that still have a place in the queue, or in a lane; guarded by the lock, any thread reads.
        self.tombs: int = 0
        self.withdrawn_waiting = 0
        # Events that have failed and wait for their next attempt, or wait behind one of those; guarded by the lock, any
        # thread reads its length.
        self.retrying: dict[Entry, None] = {}
        # The places of the queue whose events others can supersede, by key; guarded by the lock.
        self.queued: dict[ClassAndKey, Entry] = {}
        self._key_functions: dict[type, KeyOf] = {}  # by Enum class; replaced under the lock, any thread reads
        self._keeping_context: frozenset[type] = frozenset()  # Enum classes; replaced under the lock, any thread reads
        # Threads within a post to a bounded queue, which may have a permit; each adds and removes itself.
        self._posting: set[int] = set()
        self.contents: QueueContents = QueueContents(self.entries, are_stamped=times == "all")
        self.stamping: Stamping = Stamping(self.flags, times)
        self.override: PostOverride = PostOverride()
        self.room: QueueRoom = QueueRoom(self, config, is_inside, on_size)
        self.shutdown: QueueShutdown = QueueShutdown(self, mailbox.is_mailbox_thread, is_inside)
        if write_ahead.is_on:
            self.flags.gate = LOOK
        # The steps of a post.
        self._after = self._make_after()
        self.post: Callable[[Any], bool] = self._make_post()

    @property
    def phase(self) -> int:
        """RUNNING, DRAINING, ...; never goes back."""
        return self.flags.phase

    def size(self) -> int:
        """How many events are queued. Any thread; exact where the caller holds the lock and takes none."""
        return max(0, len(self.entries) + len(self.side) - self.tombs)

    def has_events(self) -> bool:
        """Whether events are queued, or wait for their next attempt. Any thread.

        An event moves to `retrying` while it is in hand, and from there straight into the queue: see Drain.is_drained.
        """
        return bool(self.retrying or self.side) or len(self.entries) > self.tombs

    def wake(self) -> None:
        """Wake the handler thread if it waits. Any thread; never blocks."""
        self._parking.unpark()

    def set_up_class(self, event_class: type, key_of: KeyOf | None, keeps_context: bool, is_durable: bool) -> None:
        """From the next post on, let new events of the class supersede queued ones with the same key (None: no event
        does), keep the contexts of their posts, or not, and write them ahead, or not. Any thread, but one at a time."""
        with self.lock:
            functions = {each: function for each, function in self._key_functions.items() if each is not event_class}
            self._key_functions = functions if key_of is None else {**functions, event_class: key_of}
            others = self._keeping_context - {event_class}
            self._keeping_context = others | {event_class} if keeps_context else others
            self.write_ahead.set_durable(event_class, is_durable)
            if key_of is not None or keeps_context:
                self.flags.gate = LOOK

    # -- the plain post ------------------------------------------------------------------------------------------------

    def _make_post(self) -> Callable[[Any], bool]:
        """The fast path of a post: for an unbounded queue, for one whose posts all note the time, for a bounded one.

        A closure, because a producer would pay for a method's attribute lookups and calls with each event.
        """
        # Each name from outside that the function uses costs every post a nanosecond.
        flags, append, after, post_gated = self.flags, self.entries.append, self._after, self._post_gated
        take_permit, post_slowly, entry_of = self.room.permits.popleft, self._post_slowly, self._gated_entry
        now_ns, stamped, parking, give_back = perf_counter_ns, STAMPED, self._parking, self.room.give_back

        # At the limit of recursion, `after` fails at a depth at which the append did not. Then the post wakes the
        # handler thread by one call in C.

        def post(event: Any) -> bool:
            if flags.gate:
                return post_gated(event)
            append(event)  # P1: pairs with H2 in LoneEvents.dispatch and E2 in QueueShutdown.take_last
            if flags.alert:  # P2
                try:
                    return after(event)
                except RecursionError:
                    parking.knock(SIGNAL)
                    if flags.phase != RUNNING:
                        raise
            return True

        def post_stamped(event: Any) -> bool:
            if flags.gate is LOOK:
                return post_gated(event)
            entry: Any = (event, now_ns(), stamped)
            append(entry)  # P1
            if flags.alert:  # P2
                try:
                    return after(entry)
                except RecursionError:
                    parking.knock(SIGNAL)
                    if flags.phase != RUNNING:
                        raise
            return True

        def post_bounded(event: Any) -> bool:
            entry = event
            if flags.gate:
                if flags.gate is LOOK:
                    return post_gated(event)
                entry = entry_of(event)
            try:
                take_permit()
            except IndexError:
                return post_slowly(event)
            except BaseException as error:
                traceback = error.__traceback__
                if traceback is None or traceback.tb_next is not None or error.__class__ not in OWN:
                    give_back()
                raise
            try:
                append(entry)  # P1
            except BaseException:  # of a signal handler: the event is queued
                parking.knock(SIGNAL)
                raise
            if flags.alert:  # P2
                try:
                    return after(entry)
                except RecursionError:
                    parking.knock(SIGNAL)
                    if flags.phase != RUNNING:
                        raise
            return True

        if self.room.capacity is not None:
            return post_bounded
        return post_stamped if self.stamping.stamps_all else post

    def steps(self) -> PostSteps | None:
        """What a plain post is made of, for a post that chooses among inboxes; None: this one's post does more."""
        if self.room.capacity is not None or self.stamping.stamps_all:
            return None
        return PostSteps(self.flags, self.entries.append, self.post, self._after, self._parking.knock)

    def _post_gated(self, event: Any) -> bool:
        if self.flags.gate is LOOK:
            return self._post_slowly(event)
        return self._append(self._gated_entry(event))

    def _gated_entry(self, event: Any) -> Any:
        """The entry for an event whose post may have to note the time."""
        is_bare = self._parking.is_waiting() and not self.stamping.stamps_all
        return event if is_bare else self.stamping.stamped(self, event)

    def _append(self, entry: Any) -> bool:
        """Queue an event or an entry without duties, and return whether it was accepted."""
        self.entries.append(entry)  # P1
        if self.flags.alert:  # P2
            try:
                return self._after(entry)
            except RecursionError:
                self._parking.knock(SIGNAL)
                if self.flags.phase != RUNNING:
                    raise
        return True

    def _make_after(self) -> Callable[[Any], bool]:
        """The end of a post that finds `alert` set: its event is queued, and the handler thread waits or stops."""
        inbox, flags, take_back, parking = self, self.flags, self.shutdown.take_back, self._parking
        take_duty, now_ns = parking.take_duty, perf_counter_ns

        def after(entry: Any) -> bool:
            try:  # as `_wake_for_post`
                wake = take_duty()
                with inbox.lock:
                    flags.alert = flags.phase != RUNNING
                flags.woken_ns = now_ns()
                wake()
            except IndexError:  # another thread does
                pass
            except RecursionError:  # the caller, which needs less of the stack, knocks
                raise
            except BaseException:  # a KeyboardInterrupt
                parking.knock(SIGNAL)
                raise
            return flags.phase == RUNNING or not take_back(entry)

        return after

    def _wake_for_post(self) -> None:
        """Wake the handler thread, which waits; only the thread that gets the duty does."""
        flags = self.flags
        try:
            release = self._parking.take_duty()
        except IndexError:
            return
        # Before the release: see "Post and sleep". Under the lock, so that a stop's alert is not lost.
        with self.lock:
            flags.alert = flags.phase != RUNNING
        flags.woken_ns = perf_counter_ns()
        release()

    def calm(self) -> None:
        """Reset the alert after a wait that no post has ended. Handler thread."""
        with self.lock:
            self.flags.alert = self.flags.phase != RUNNING

    # -- every other post ----------------------------------------------------------------------------------------------

    def post_if_room(self, event: Any) -> bool:
        """Post, or raise QueueFullError and do nothing where `post` would wait for room.

        In write-ahead mode it waits for the disk. Any thread.
        """
        return self._post_slowly(event, wait=False)

    def post_with(self, event: Any, delivery: Delivery, wait: bool, ask: AskFuture | None = None) -> bool:
        """Post an event that brings something along. `wait`: for room; see `post_if_room`. Any thread."""
        return self.post_entry(Entry(self, event, ask=ask, delivery=delivery), wait)

    def post_entry(self, entry: Entry, wait: bool) -> bool:
        """Post an event that has its entry already. `wait`: for room; see `post_if_room`. Any thread."""
        if self.flags.phase != RUNNING and (reason := self.closed_to()):
            entry.end("refused", error=reason)
            return False
        if self._key_functions or self._keeping_context:
            try:
                self.set_up(entry)
            except BaseException:
                self.undo_or_finish(entry)
                raise
        return self._bring(entry, wait)

    def _post_slowly(self, event: Any, wait: bool = True) -> bool:
        reason = self.closed_to()
        if reason:
            return self.reject(reason, type_of(event))
        key = self.key_of(event) if self._key_functions else None
        if self.write_ahead.keeps_all or self.write_ahead.keeps(event) or self.keeps_context(event):
            entry = Entry(self, event, key=key)
            if self._keeping_context:
                self._keep_context(entry)
        elif key is not None:
            if self._has_replaced(event, key):
                return True
            due = self.stamping.due and not self._parking.is_waiting()
            entry = Entry(self, event, key=key, enqueued_ns=perf_counter_ns() if due else 0)
        elif self.room.capacity is None:
            return self._append(self.stamping.stamped(self, event) if self.stamping.due else event)
        else:
            entry = Entry(self, event, enqueued_ns=perf_counter_ns() if self.stamping.due else 0)
        return self._bring(entry, wait)

    def set_up(self, entry: Entry) -> None:
        """Give the entry its key, and the caller's context if its class keeps it.

        Raises:
            Exception: raised by the user's function for the key, or by the key's `__hash__`.
        """
        if self._key_functions:
            entry.key = self.key_of(entry.event)
        self._keep_context(entry)

    def key_of(self, event: Any) -> ClassAndKey | None:
        """The key of an event, on its producer's thread; None: it neither supersedes nor is superseded.

        Raises as `set_up`.
        """
        event_class = type(type_of(event))
        key_of = self._key_functions.get(event_class)
        key = key_of(event) if key_of is not None else None
        if key is None:
            return None
        hash(key)  # raises before anything is accepted
        return event_class, key

    def keeps_context(self, event: Any) -> bool:
        """Whether the event's class keeps the context of its post."""
        return bool(self._keeping_context) and type(type_of(event)) in self._keeping_context

    def _keep_context(self, entry: Entry) -> None:
        if self.keeps_context(entry.event) and (entry.delivery is None or entry.delivery.context is None):
            entry.brings().context = copy_context()

    def _has_replaced(self, event: Any, key: ClassAndKey) -> bool:
        """The short way of a newer event: swap it in place, if the one of its key has nothing but that event."""
        if is_owned(self.lock):
            return False
        with self.lock:
            place = self.queued.get(key)
            newest = place and (place.heir or place)
            if newest is None or newest.state != QUEUED:
                return False
            if newest.ask is not None or newest.accepted_seq or newest.delivery is not None:
                return False
            superseded = self.dropped.get("superseded", 0) + 1
            newest.event, self.dropped["superseded"] = event, superseded
            if newest is place:
                newest.enqueued_ns = perf_counter_ns() if self.stamping.due else 0
            return True

    def _bring(self, entry: Entry, wait: bool) -> bool:
        """Room, the log, the queue. Whatever raises on the way, the event is queued, or has left nothing behind."""
        try:
            if self.room.capacity is None:
                reason = self._way_in(entry, wait, False)
            else:  # as `in_post`, which costs more than the rest of a post
                thread = get_ident()
                is_nested = thread in self._posting
                try:
                    self._posting.add(thread)
                    reason = self._way_in(entry, wait, is_nested)
                finally:
                    if not is_nested:
                        self._posting.discard(thread)
        except BaseException:
            if entry.permit and entry.state == NEW:  # here, as the limit of recursion may be near
                self.room.permits.append(None)
                entry.permit = False
            self.undo_or_finish(entry)
            raise
        if reason:
            return self.refuse(entry, reason)
        if entry.victim is not None or entry.permit:
            self._end_victim(entry)
        if self.flags.alert:
            self._wake_surely()
        return True

    @contextlib.contextmanager
    def in_post(self) -> Iterator[bool]:
        """A post that may hold a permit; whether it has interrupted another one of its thread."""
        thread = get_ident()
        is_nested = thread in self._posting
        try:
            self._posting.add(thread)
            yield is_nested
        finally:
            if not is_nested:
                self._posting.discard(thread)

    def _way_in(self, entry: Entry, wait: bool, is_nested: bool) -> str:
        """Why the post is refused; empty: its event is queued."""
        if is_owned(self.lock):
            return self.put_aside(entry)
        is_bounded, reason = self.room.capacity is not None, ""
        # An event that will supersede another one needs no room.
        if is_bounded and (entry.key is None or not self.is_queued(entry.key)):
            reason = self.room.take(entry, wait, is_nested)
        if not reason and (self.write_ahead.keeps_all or self.write_ahead.keeps(entry.event)):
            reason = self._log_ahead(entry)
            if reason == "reentrant":
                return self.put_aside(entry)
        while not reason:
            with self.lock:
                reason, is_queued = self._enqueue(entry)
            if is_queued:
                break
            reason = reason or self.room.take(entry, wait, is_nested)
        return reason

    def is_queued(self, key: ClassAndKey) -> bool:
        with self.lock:
            return key in self.queued

    def _log_ahead(self, entry: Entry) -> str:
        """Write the event ahead. Returns why its post is refused; empty: it is not."""
        ahead, delivery = self.write_ahead, entry.delivery
        try:
            marks = None if delivery is None else ahead.marked(delivery.context)
            entry.accepted_seq = ahead.accept(entry.event, marks)
        except ReentrantAppendError:
            return "reentrant"
        if entry.accepted_seq:
            return ""
        # A handler may post while the queue drains; then the log may have failed, or have been closed by the end.
        is_of_log = self.flags.phase == RUNNING or self.write_ahead.is_failed()
        return "journal" if is_of_log else self.shut_reason()

    def _enqueue(self, entry: Entry) -> tuple[str, bool]:
        """Under the lock: put it into the queue, or in the place of an older event of its key.

        Returns why its post is refused, and whether it is queued; neither: it needs room. Raises what comparing keys
        raises; then, as behind any interrupt, `state` says whether it is queued.
        """
        if self.flags.phase >= STOPPED and not self.shutdown.will_take():
            # What is in the log, or was accepted before, is not refused: the next start hands it out.
            return ("late" if entry.accepted_seq or entry.attempt > 1 else "stopped"), False
        place = self.queued.get(entry.key) if entry.key is not None else None
        newest = (place.heir or place) if place is not None else None
        if place is not None and newest is not None and newest.state == QUEUED:
            # The debt first: whoever goes on after an interrupt ends it.
            entry.victim, place.heir, newest.state, entry.state = newest, entry, IN_HAND, QUEUED
            return "", True
        if self.room.capacity is not None and not entry.permit and not self.room.try_take(entry):
            return "", False
        if entry.key is not None:
            self.queued[entry.key] = entry
        # An event that only had to wait for room goes as it is: the handler thread is quicker with it.
        is_more = entry.ask is not None or entry.delivery is not None or entry.accepted_seq or entry.enqueued_ns
        self._add(self.entries.append, entry, entry if is_more or entry.key is not None else entry.event)
        return "", True

    def _add(self, append: Callable[[Any], object], entry: Entry, place: Any) -> None:
        """Append the entry, or its event, to the queue. From then on its place has the permit."""
        had, entry.permit, entry.state = entry.permit, False, QUEUED
        try:
            append(place)
        except BaseException as error:
            traceback = error.__traceback__
            if traceback is not None and traceback.tb_next is None and error.__class__ in OWN:
                entry.permit, entry.state = had, NEW
            raise

    def _end_victim(self, entry: Entry) -> None:
        if entry.victim is not None:
            entry.victim.end("superseded")
            entry.victim = None
        if entry.permit:  # it has the place, and so the permit, of an older one
            self.room.take_back(entry)

    def undo_or_finish(self, entry: Entry) -> None:
        """A post has raised: its event is queued, and the handler thread is woken; or it leaves nothing behind."""
        if entry.dropped is not None:
            self._end_dropped(entry)
        if entry.state == NEW:
            if entry.key is not None:
                with self.lock:
                    self.forget_key(entry)
            entry.end("refused")
        else:
            self._end_victim(entry)
            self._parking.knock(SIGNAL)

    def refuse(self, entry: Entry, reason: str) -> bool:
        if reason == "late":
            entry.end("stop")
            return True
        entry.end("refused", error=reason)
        return False

    def _wake_surely(self) -> None:
        """An event is queued, and the handler thread waits."""
        try:
            self._wake_for_post()
        except RecursionError:
            self._parking.knock(SIGNAL)
        except BaseException:
            self._parking.knock(SIGNAL)
            raise

    # -- posts that interrupt another post of their thread -------------------------------------------------------------

    def put_aside(self, entry: Entry) -> str:
        """Leave it to the handler thread to bring the event in: the thread's other post has the lock, or the log."""
        if self.room.capacity is not None and not entry.permit:
            if self._is_inside():
                self.room.take_or_overdraw(entry)
            elif not self.room.try_take(entry):
                return "reentrant"
        self._add(self.side.append, entry, entry)
        if self.flags.alert:
            self._wake_surely()
        return ""

    def bring_in(self) -> None:
        """Queue what posts have put aside. Handler thread, between events."""
        while self.side:
            entry = self.side.popleft()
            with self.lock:
                if entry.state != QUEUED:
                    self.tombs -= 1
                    continue
                entry.state, entry.permit = NEW, self.room.capacity is not None
            try:
                self._log_aside(entry)
                self._enqueue_aside(entry)
            except BaseException:
                self.undo_or_finish(entry)
                raise
            if entry.state == NEW:
                entry.end("stop")
            else:
                self._end_victim(entry)

    def _log_aside(self, entry: Entry) -> None:
        """Write the event ahead. Its post has returned True, so it is handled even if the journal cannot keep it."""
        if not self.write_ahead.keeps(entry.event) or entry.accepted_seq:
            return
        try:
            if self._log_ahead(entry):
                self._tell_of("%s: the journal has failed, so it lacks %s; the event is handled nevertheless", entry)
        except Exception as error:
            self._tell_of("%s: the journal cannot keep %s; the event is handled nevertheless", entry, error)

    def _enqueue_aside(self, entry: Entry) -> None:
        """Queue the event, without its key if the key's own methods raise: its post has returned True."""
        try:
            with self.lock:
                self._enqueue(entry)
        except Exception as error:
            if entry.state != NEW or entry.key is None:
                raise
            self._tell_of("%s: the key of %s cannot be compared, so the event supersedes no other one", entry, error)
            entry.key = None
            with self.lock:
                self._enqueue(entry)

    def _tell_of(self, message: str, entry: Entry, error: Exception | None = None) -> None:
        fields = {"dispatcher": self.name}
        tell(log, logging.ERROR, message, self.name, text_of(entry.event), error=error, extra=fields)

    # -- accepted before: no refusal -----------------------------------------------------------------------------------

    def enqueue_logged(self, entry: Entry) -> None:
        """Queue an event that is in the log. It is accepted, even if the queue has ended. Any thread.

        Raises:
            Exception: raised by comparing keys.
        """
        try:
            self.room.take_or_overdraw(entry)
            with self.lock:
                reason, _ = self._enqueue(entry)
        except BaseException:
            self.undo_or_finish(entry)
            raise
        if reason:
            self.refuse(entry, reason)
            return
        self._end_victim(entry)
        if self.flags.alert:
            self._wake_surely()

    def post_again(self, entry: Entry) -> None:
        """Queue an event whose next attempt is due, and that has a permit. Any thread."""
        with self.lock:
            if entry.state == RETRYING:
                entry.enqueued_ns = perf_counter_ns()
                try:
                    self._add(self.entries.append, entry, entry)
                finally:  # once it is in the queue: `has_events` looks there last
                    del self.retrying[entry]
        if entry.permit:  # a stop has discarded it
            self.room.take_back(entry)
        elif self.flags.alert:
            self._wake_surely()

    def put_first(self, entries: Sequence[Entry]) -> None:
        """Before the start: queue the events of the write-ahead log before all others."""
        now_ns = perf_counter_ns()
        for entry in reversed(entries):
            self.room.take_or_overdraw(entry)
            entry.permit, entry.state, entry.enqueued_ns = False, QUEUED, now_ns
            self.entries.appendleft(entry)

    def put_back(self, entry: Entry) -> None:
        """Queue an event that waits behind another one before all that is queued. Handler thread."""
        with self.lock:
            if entry.state == HELD:  # otherwise it was withdrawn, or a stop has discarded it
                self.room.take_or_overdraw(entry)
                entry.enqueued_ns = perf_counter_ns()
                del self.retrying[entry]
                self._add(self.entries.appendleft, entry, entry)

    def keep(self, entry: Entry, state: int) -> None:
        """Move an event in hand to those that wait for their next attempt, or behind one of them. Handler thread."""
        with self.lock:
            entry.state, self.retrying[entry] = state, None

    def drop_oldest(self, entry: Entry) -> bool:
        """Discard the oldest event, whose permit `entry` gets; False: the queue is empty. Any thread."""
        with self.lock:
            try:
                for oldest in starmap(self.entries.popleft, _ONCE):  # a `for` has no call between the pop and the store
                    entry.permit, entry.dropped = True, oldest
            except IndexError:
                if entry.dropped is None:
                    return False
                raise
            if type(entry.dropped) is not Entry:
                self._end_dropped(entry)
        if entry.dropped is not None:
            self._end_dropped(entry)
        return True

    def _end_dropped(self, entry: Entry) -> None:
        """End what a post has taken out of a full queue. May be done twice."""
        place = entry.dropped
        if type(place) is not Entry:
            with self.lock:
                number = self.dropped.get("drop_oldest", 0) + 1
                self.dropped["drop_oldest"], entry.dropped = number, None
            return
        newest = place.heir or place
        if not newest.discard("drop_oldest", has_left=True) and newest.outcome != "drop_oldest":  # it was withdrawn
            with self.lock:
                self.tombs, entry.dropped = self.tombs - 1, None
        entry.dropped = None

    # -- places, keys, counts ------------------------------------------------------------------------------------------

    def left_early(self, entry: Entry, has_left: bool) -> None:
        """Under the lock: its event was taken out of its place, which stays until the handler thread comes to it, or
        `has_left` the queue as well."""
        if entry.key is not None:
            self.forget_key(entry)
        if not has_left and self.room.capacity is not None and self.tombs <= self.room.capacity:
            self.room.advance()  # of more tombs the permits stay with their places, so the queue keeps a bound

    def forget_key(self, entry: Entry) -> None:
        """Under the lock: nothing supersedes the entry, or its heir, from now on."""
        try:
            place = self.queued.get(entry.key) if entry.key is not None else None
            if place is not None and (place is entry or place.heir is entry):
                del self.queued[entry.key]  # type: ignore[arg-type]
        except BaseException as error:  # raised by a key; `_enqueue` passes over a place that has left the queue
            reraise_interrupt(error)

    def count_end(self, entry: Entry, outcome: str, reason: str | None) -> None:
        """Count an event that is never handled, by outcome, or a refused post, by reason, once. Any thread."""
        counts, name = (self.dropped, outcome) if outcome != "refused" else (self.rejected, reason)
        event_type = type_of(entry.event) if counts is self.rejected else None  # not under the lock: it is foreign
        with self.lock:
            number = counts.get(name, 0) + 1 if name is not None else 0  # None: the post has raised
            if entry.state != OVER:
                entry.state = OVER
                if name is not None:
                    counts[name] = number
                if name is not None and event_type is not None:
                    self.last_rejected[name] = event_type

    def count_dropped(self, reason: DropReason, number: int) -> None:
        """Count accepted events without entries that are never handled. Any thread."""
        with self.lock:
            self.dropped[reason] = self.dropped.get(reason, 0) + number

    def reject(self, reason: str, event_type: Any = None) -> bool:
        """Count a refused post; returns False, as the post does. `event_type`: None if it is not known."""
        with self.lock:
            self.rejected[reason] = self.rejected.get(reason, 0) + 1
            if event_type is not None:
                self.last_rejected[reason] = event_type
        return False

    def take_all(self) -> tuple[list[Any], list[Entry]]:
        """Under the lock: empty the queue. Returns what has no entry, and the entries, which are in hand now."""
        bare: list[Any] = []
        entries: list[Entry] = []
        for source in (self.side, self.entries):
            with contextlib.suppress(IndexError):
                while True:
                    place = source.popleft()
                    if type(place) is not Entry:
                        bare.append(place)
                    elif (entry := place.take()) is not None:
                        entries.append(entry)
        self.queued.clear()
        return bare, entries

    # -- the phase -----------------------------------------------------------------------------------------------------

    def is_open(self) -> bool:
        return self.flags.phase == RUNNING

    def is_idle(self) -> bool:
        """The handler thread waits, nothing is queued, and no post is on its way through the slow path."""
        return self._parking.is_waiting() and not self.entries and not self._posting and not self.write_ahead.is_on

    def closed_to(self) -> str:
        """Why a post of the caller is refused, because of the phase; empty: it is not.

        Raises:
            ForkedProcessError: as a post.
        """
        phase = self.flags.phase
        if phase == RUNNING:
            return ""
        if phase == FORKED:
            self.check_not_forked()
        # A handler is not refused while its thread runs, so that it can finish its work (invariant 9).
        if phase != ABANDONED and not self.shutdown.has_ended and self._is_inside():
            return ""
        return self.shut_reason()

    def shut_reason(self) -> str:
        return "draining" if self.flags.phase == DRAINING else "stopped"

    def reason(self) -> str:
        """Why a post was refused just now: one of the reasons that `rejected` counts by."""
        return self.room.refusal() if self.flags.phase == RUNNING else self.shut_reason()

    def check_not_forked(self) -> None:
        """Raises ForkedProcessError: as a post."""
        if self.flags.phase == FORKED:
            raise ForkedProcessError(self.name, self.write_ahead.journal_path)

    def renew_locks(self) -> None:
        """In a child process: a thread of the parent may have held them."""
        self.lock, self.answered = threading.RLock(), threading.Condition()
