"""Posting: the queue between producers on any thread and one handler thread.

A post appends to a deque, which is atomic in CPython, and then reads one flag, `alert`. A producer that finds it set
wakes the handler thread or, if that thread has stopped meanwhile, removes its entry again. Reading before the append
would strand an event that is appended just after a stop (invariant 2).

The steps of a post:

1. Read `gate`: only append, note the time as well, or take the slow path (`_post_special`), which refuses posts to a
   queue that is not RUNNING, supersedes a queued event, keeps the caller's context, and writes the event ahead.
2. In a bounded queue, take a permit, or apply the policy for a full queue.
3. Append.
4. Read `alert`: if it is set, the handler thread waits or the queue is shut (`_after_append`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from operator import length_hint
from time import perf_counter_ns
from typing import Any

from dispatcher.config import DispatcherConfig
from dispatcher.errors import ForkedProcessError
from dispatcher.event import KeyOf
from dispatcher.journal.segment_log import ReentrantAppendError
from dispatcher.mailbox.parking import SIGNAL
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue import nesting
from dispatcher.queue.coalescing import Coalescing
from dispatcher.queue.contents import QueueContents
from dispatcher.queue.delivery import Delivery
from dispatcher.queue.entries import (
    ABANDONED,
    DRAINING,
    FORKED,
    LOOK,
    RUNNING,
    STAMPED,
    ClassAndKey,
    QueuedEvent,
    QueueState,
    Stamping,
    Times,
)
from dispatcher.queue.override import PostOverride
from dispatcher.queue.room import LAST, QueueRoom
from dispatcher.queue.shutdown import QueueShutdown
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.util.foreign import type_of
from dispatcher.util.threads import is_owned


class EventQueue:
    """Events on their way to the thread that owns `mailbox`. Posts from that thread are never refused while it runs.

    `post(event) -> bool` is for any thread: True if the event was accepted, False if it was refused; `state.rejected`
    counts refusals by reason (full, timeout, draining, stopped, journal, reentrant). `is_inside()`: the caller is a
    handler thread, whose posts are neither refused nor delayed. `on_size(size, remaining)` is called when the queue is
    full.

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
        self.name = name  # never changes
        self._is_inside = is_inside
        self.write_ahead = write_ahead  # never changes
        self._parking = mailbox.parking  # where the handler thread waits; never changes
        self.state = state = QueueState(write_ahead.settle)
        self.entries = state.entries  # any thread appends; the handler thread takes from the left
        self.contents = QueueContents(state.entries, are_stamped=times == "all")  # never changes
        self.flags = state.flags
        self.stamping = Stamping(state.flags, times)
        self.coalescing = Coalescing(state, self.stamping, self._parking.is_waiting)
        self._keeping_context: set[type] = set()  # Enum classes; any thread, in single steps
        self.override = PostOverride()  # never changes
        self.room = QueueRoom(name, config, state, self.coalescing, is_inside, nesting.is_nested, on_size)
        self.shutdown = QueueShutdown(
            name,
            state,
            self.room,
            self.coalescing,
            mailbox.is_mailbox_thread,
            is_inside,
            under_way=write_ahead.under_way,
            is_logged=write_ahead.is_on,
        )
        if write_ahead.is_on:
            self.flags.gate = LOOK
        # The steps of a post, which never change.
        self._after_append = self._make_after_append()
        self.post = self._make_post()

    @property
    def phase(self) -> int:
        """RUNNING, DRAINING, ...; never goes back."""
        return self.flags.phase

    def post_if_room(self, event: Any) -> bool:
        """As `post`, but raises QueueFullError, and does nothing, instead of waiting for room.

        In write-ahead mode it waits for the disk. Any thread.
        """
        return self._post_special(event, False)

    def post_delivery(self, event: Any, delivery: Delivery, wait: bool) -> bool:
        """As `post`, or `post_if_room`, of an event with a delivery. Any thread."""
        self.state.has_deliveries = True
        return self._post_special(event, wait, delivery)

    def wake(self) -> None:
        """Wake the handler thread if it waits. Any thread; never blocks."""
        self._parking.unpark()

    def set_up_class(self, event_class: type, key_of: KeyOf | None, keeps_context: bool) -> None:
        """From the next post on, let new events of the class supersede queued ones with the same key (None: no event
        does), and keep the contexts of their posts, or not. Any thread, but one at a time."""
        self.coalescing.supersede_by(event_class, key_of)
        if keeps_context:
            self._keeping_context.add(event_class)
        else:
            self._keeping_context.discard(event_class)
        if key_of is not None or keeps_context:
            self.flags.gate = LOOK

    def in_context(self, event: Any, delivery: Delivery | None) -> Delivery | None:
        """The delivery, with a copy of the caller's context if the event's class keeps it and the delivery has none.

        Any thread.
        """
        if type(type_of(event)) not in self._keeping_context or (delivery is not None and delivery.context is not None):
            return delivery
        context = copy_context()
        return Delivery(context=context) if delivery is None else delivery.in_context(context)

    def put_first(self, events: Sequence[tuple[int, Any, Delivery]]) -> None:
        """Before the start: queue accepted seqs, events and deliveries of the write-ahead log before all others."""
        now_ns = perf_counter_ns()
        if self.room.capacity is not None:
            for _ in events:
                self.room.take_or_overdraw()
        self.entries.extendleft(
            QueuedEvent(event, now_ns, None, seq, delivery) for seq, event, delivery in reversed(events)
        )

    def put_back(self, number: int) -> None:
        """Queue an event that is retrying before all others. Handler thread."""
        entry = self.state.retrying.get(number)
        if entry is not None:
            entry.enqueued_ns = perf_counter_ns()
            self.room.take_or_overdraw()
            with suppress(KeyError):  # a stop has discarded it
                self.entries.extendleft(map(self.state.retrying.pop, (number,)))  # one step

    # -- posts: any thread ---------------------------------------------------------------------------------------------

    def _make_post(self) -> Callable[[Any], bool]:
        """The fast path of a post: for an unbounded queue, for one whose posts all note the time, for a bounded one.

        A closure, because a producer would pay for a method's attribute lookups and calls with each event.
        """
        # Each name from outside that the function uses costs every post a nanosecond.
        flags, append, after_append, post_gated = self.flags, self.entries.append, self._after_append, self._post_gated
        take_permit, post_full, entry_of = self.room.permits.pop, self._post_full, self._gated_entry
        undo_take = self._undo_take
        now_ns, stamped, parking = perf_counter_ns, STAMPED, self._parking

        # At the limit of recursion, `after_append` fails at a depth at which the append did not. Then the post wakes
        # the handler thread by one call in C.

        def post(event: Any) -> bool:
            if flags.gate:
                return post_gated(event)
            append(event)
            if flags.alert:
                try:
                    return after_append(event)
                except RecursionError:
                    parking.knock(SIGNAL)
                    if flags.phase != RUNNING:
                        raise
            return True

        def post_stamped(event: Any) -> bool:
            if flags.gate is LOOK:
                return post_gated(event)
            entry: Any = (event, now_ns(), stamped)
            append(entry)
            if flags.alert:
                try:
                    return after_append(entry)
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
                return post_full(event)
            except BaseException as error:
                undo_take(error)
                raise
            try:
                append(entry)
            except BaseException:  # of a signal handler: the event is queued
                parking.release_anyhow()
                raise
            if flags.alert:
                try:
                    return after_append(entry)
                except RecursionError:
                    parking.knock(SIGNAL)
                    if flags.phase != RUNNING:
                        raise
            return True

        nesting.entries(post, post_stamped, post_bounded, EventQueue.post_if_room, EventQueue.post_delivery)
        if self.room.capacity is not None:
            return post_bounded
        return post_stamped if self.stamping.stamps_all else post

    def _post_gated(self, event: Any) -> bool:
        return self._post_special(event) if self.flags.gate is LOOK else self._append(self._gated_entry(event))

    def _gated_entry(self, event: Any) -> Any:
        """The entry for an event whose post may have to note the time."""
        return event if self._parking.duties and not self.stamping.stamps_all else self.stamping.stamped(event)

    def _post_full(self, event: Any) -> bool:
        return self._enqueue(event, True, None)

    def _undo_take(self, error: BaseException) -> None:
        """Return the permit of a post that met `error` when it took one."""
        traceback = error.__traceback__
        is_own = traceback is not None and traceback.tb_next is None  # the call's, not of a function behind it
        if not (is_own and isinstance(error, RecursionError)):  # raised by a signal handler, once the permit was taken
            self.room.give_back()

    def _post_special(self, event: Any, wait: bool = True, delivery: Delivery | None = None) -> bool:
        """The slow path: the queue is not RUNNING, or the event is coalesced, logged ahead or stamped, or has a
        delivery."""
        if self.refuses():
            return False
        key = self.coalescing.key_of(event)
        if self._keeping_context:
            delivery = self.in_context(event, delivery)
        if key is not None:
            return self._post_keyed(event, key, wait, delivery)
        return self._enqueue(event, wait, delivery)

    def _enqueue(self, event: Any, wait: bool, delivery: Delivery | None) -> bool:
        """Take a permit, write the event ahead, and append its entry.

        A signal handler may raise behind each call. What is left in `held` and in `hand` tells what to give back:
        permit and entry go to their next place in one call of a function in C.
        """
        held: list[Any] = []
        hand: list[Any] | None = None
        accepted_seq = 0
        try:
            if not self.room.take(wait, held):
                return False
            if self.write_ahead.is_on:
                accepted_seq = self._log_ahead(event)
                if not accepted_seq:
                    self.room.undo(held)
                    return False
            if accepted_seq or delivery is not None:
                hand = [QueuedEvent(event, perf_counter_ns(), None, accepted_seq, delivery)]
            else:
                hand = [self._stamped_if_due(event)]
            entry = hand[0]
            self.entries.extend(map(hand.pop, LAST))
            return self._queued(entry)
        except BaseException:
            if hand is None or hand:
                self.room.undo(held)
                self.state.settle(accepted_seq)
            else:
                self._parking.knock(SIGNAL)
            raise

    def refuses(self) -> bool:
        """Whether the queue is shut for this caller; then its post is counted as refused.

        Raises:
            ForkedProcessError: as a post.
        """
        phase = self.flags.phase
        if phase == RUNNING:
            return False
        if phase == FORKED:
            self.check_not_forked()
        # A handler is not refused while its thread runs, so that it can finish its work (invariant 9).
        if phase != ABANDONED and not self.shutdown.has_ended and self._is_inside():
            return False
        self.state.reject_shut()
        return True

    def check_not_forked(self) -> None:
        """Raises ForkedProcessError: as a post."""
        if self.flags.phase == FORKED:
            raise ForkedProcessError(self.name, self.write_ahead.journal_path)

    def reason(self) -> str:
        """Why a post was refused just now: one of the reasons that `state.rejected` counts by."""
        phase = self.flags.phase
        if phase == RUNNING:
            return self.room.refusal()
        return "draining" if phase == DRAINING else "stopped"

    def enqueue_logged(self, event: Any, key: ClassAndKey | None, accepted_seq: int, delivery: Delivery | None) -> None:
        """Queue an event that is in the log and holds a permit. It is accepted, even if the queue has ended.

        Raises:
            Exception: raised by comparing keys.
        """
        if key is None:
            self._append(QueuedEvent(event, perf_counter_ns(), None, accepted_seq, delivery))
        else:
            self._enqueue_keyed(event, key, accepted_seq, delivery, held=[None])

    def post_again(self, number: int) -> None:
        """Queue an event that is retrying, for which the caller holds a permit."""
        entry = self.state.retrying.get(number)
        try:
            if entry is None:
                raise KeyError(number)
            entry.enqueued_ns = perf_counter_ns()
            self.entries.extend(map(self.state.retrying.pop, (number,)))  # one step
        except KeyError:  # a stop has discarded it
            self.room.give_back()
            return
        if self.flags.alert:
            self._after_append(entry)

    def _post_keyed(self, event: Any, key: ClassAndKey, wait: bool, delivery: Delivery | None) -> bool:
        """Replace the queued event of the same key, or append the event."""
        accepted_seq = 0
        if self.write_ahead.is_on:
            # Log first: the superseded event may be settled only once this one is in the log.
            accepted_seq = self._log_ahead(event)
            if not accepted_seq:
                return False
        return self._enqueue_keyed(event, key, accepted_seq, delivery, wait=wait)

    def _enqueue_keyed(
        self,
        event: Any,
        key: ClassAndKey,
        accepted_seq: int,
        delivery: Delivery | None,
        *,
        wait: bool = False,
        held: list[Any] | None = None,
    ) -> bool:
        """`held`: the caller's permit, which is returned unless the event needs it."""
        entry, held = None, [] if held is None else held
        try:
            holder = self.coalescing.supersede(event, key, accepted_seq, delivery)
            if holder is None:
                if not (held or self.room.take(wait, held)):
                    self.state.settle(accepted_seq)
                    return False
                entry = self.coalescing.entry(event, key, accepted_seq, delivery)
                holder = self.coalescing.register(entry)
        except BaseException:  # raised by comparing keys, because of a full queue, or by a signal handler
            if entry is not None and (self.coalescing.is_registered(entry) or not length_hint(entry.place)):
                self.coalescing.enqueue(entry)
            else:
                self.room.undo(held)
                self.state.settle(accepted_seq)
            raise
        if holder is not entry:
            self.room.undo(held)
        has_queued = self.coalescing.enqueue(holder)
        if self.flags.alert and (has_queued or holder is entry):
            return self._after_append(holder)
        return True

    def _log_ahead(self, event: Any) -> int:
        """Write an event ahead; returns its accepted seq, or 0 once its post is refused."""
        accepted_seq, reason = 0, "journal"
        try:
            # A `__del__` may post while its thread holds the lock, which the log's writer may need.
            accepted_seq = self.write_ahead.accept(event, alone=is_owned(self.state.end_lock))
        except ReentrantAppendError:
            reason = "reentrant"
        if not accepted_seq:
            # A handler may post while the queue drains; then the log may have failed, or have been closed by the end.
            if self.flags.phase == RUNNING or self.write_ahead.is_failed():
                self.state.reject(reason)
            else:
                self.state.reject_shut()
        return accepted_seq

    def _stamped_if_due(self, event: Any) -> Any:
        return self.stamping.stamped(event) if self.stamping.due else event

    def _append(self, entry: Any) -> bool:
        self.entries.append(entry)
        return self._queued(entry)

    def _queued(self, entry: Any) -> bool:
        """The end of a post whose entry is in the queue."""
        if self.flags.alert:
            try:
                return self._after_append(entry)
            except RecursionError:  # see `_make_post`
                self._parking.knock(SIGNAL)
                if self.flags.phase != RUNNING:
                    raise
        return True

    def _make_after_append(self) -> Callable[[Any], bool]:
        """The end of a post that finds `alert` set: its entry is queued, and the handler thread waits or stops."""
        flags, take_duty, take_back = self.flags, self._parking.take_duty, self.shutdown.take_back
        parking, now_ns = self._parking, perf_counter_ns

        def after_append(entry: Any) -> bool:
            try:
                wake = take_duty()  # only the thread that gets the duty wakes the handler thread
                # Reset before the release: the handler thread cannot end until then, so a producer that sees the alert
                # reset does not strand its event.
                flags.alert = False
                flags.woken_ns = now_ns()
                if flags.phase == RUNNING:
                    wake()
                    return True
                flags.alert = True
                wake()
            except IndexError:
                pass
            except RecursionError:  # the duty was not taken: the caller, which needs less of the stack, knocks
                raise
            except BaseException as error:  # a KeyboardInterrupt, perhaps after the duty was taken
                parking.release_anyhow()
                if not isinstance(error, RuntimeError):  # raised by releasing twice
                    raise
            return flags.phase == RUNNING or not take_back(entry)

        return after_append

    def calm(self) -> None:
        """Reset the alert after a wait that no post has ended. Handler thread."""
        self.flags.alert = False
        if self.flags.phase != RUNNING:  # a stop sets the phase before the alert, so the alert is not lost
            self.flags.alert = True
