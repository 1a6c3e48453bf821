"""Dispatchers made of dispatchers: a group that stops together, and after Hadoop one that splits events by key, and one
for a single consumer.

The handlers of a group post to each other. Stopped one by one, the first member would refuse posts from the handlers of
the others. So a stop drains them jointly: every dispatcher refuses posts from outside and accepts posts from any
handler of the group, and all end at one moment, when every queue is empty and no handler has an event in hand. A
handler's post to another dispatcher of the group never waits for room, because two full queues could wait for each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any
from zlib import crc32

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import DispatcherConfig, dispatcher_config
from dispatcher.dispatching.stopping import StopWait, check_may_wait, grace_s
from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.event import DispatcherEventHandler, Handler, HasType
from dispatcher.interface import ScheduledEvent
from dispatcher.journal.format.partitions import partition_path
from dispatcher.journal.partitioned import PartitionedJournal
from dispatcher.letter_target import note_partitions
from dispatcher.mailbox.parking import SIGNAL
from dispatcher.posting_service import Core, PostingService
from dispatcher.queue.contents import sums
from dispatcher.queue.flags import DRAINING, FORKED, RUNNING
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.keys import Keys
from dispatcher.queue.shutdown import QueueShutdown
from dispatcher.routes import Part
from dispatcher.service import CompositeService, Service, ServiceState
from dispatcher.util.foreign import is_member, text_of, type_of
from dispatcher.util.functions import require_methods


class DispatcherGroup(CompositeService):
    """Starts its `partitions`, which you haven't started, in order and stops them together. If one fails, all fail.

    `drain_timeout_s` and `drains_on_stop` apply to the group's stop, instead of the settings of its members.

    Raises:
        TypeError: `name` isn't a str, or an item of `partitions` isn't an AsyncDispatcher.
        ValueError: `partitions` is empty, or a partition is in it twice or belongs to another composite service.
    """

    def __init__(
        self,
        partitions: Sequence[AsyncDispatcher],
        *,
        name: str = "DispatcherGroup",
        drain_timeout_s: float = 30.0,
        drains_on_stop: bool = True,
    ) -> None:
        super().__init__(name)
        require_methods(partitions, "partitions", "AsyncDispatchers", "__iter__")
        partitions = tuple(partitions)
        if not partitions:
            raise InvalidValueError(f"{name}: a DispatcherGroup needs at least one dispatcher; partitions is empty")
        for index, partition in enumerate(partitions):
            if not isinstance(partition, AsyncDispatcher):
                raise InvalidTypeError(
                    f"{name}: partitions[{index}] must be an AsyncDispatcher, not {text_of(partition)}"
                )
        self._drain_on_stop = drains_on_stop  # any thread writes, the thread that stops reads
        self._drain_timeout_s = drain_timeout_s
        self.partitions = partitions
        self.add_services(partitions)
        cores = tuple(partition.core for partition in partitions)
        for partition in partitions:
            partition.core.siblings = cores
            partition.core.group = partition.view.group = self
            partition.register_service_listener(self._on_partition)

    def set_drain_events_on_stop(self, drain: bool = True) -> None:
        """Set, before `stop`, whether that handles queued events (the default) or discards them."""
        self._drain_on_stop = drain
        for partition in self.partitions:
            partition.set_drain_events_on_stop(drain)

    def is_drained(self) -> bool:
        """Whether all partitions were drained at one moment during this call."""
        done = [partition.core.progress.done for partition in self.partitions]
        # If `begun` still equals the earlier `done`, no partition took an event in between: all were drained at once.
        return all(partition.is_drained() for partition in self.partitions) and (
            done == [partition.core.progress.begun for partition in self.partitions]
        )

    def await_drained(self, timeout: float | None = None) -> bool:
        """Wait for all partitions, as AsyncDispatcher.await_drained."""
        is_handler, is_on_loop = self.partitions[0].core.is_inside(), self._keeps_stop_waiting() == "loop"
        check_may_wait(self.name, is_handler=is_handler, is_on_loop=is_on_loop)
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            for partition in self.partitions:
                drained = partition.core.when_drained()
                try:
                    if not drained.result(None if deadline is None else max(0.0, deadline - monotonic())):
                        return False
                except FutureTimeoutError:
                    return False
                finally:
                    drained.cancel()
            if self.is_drained():
                return True

    def is_stopped(self) -> bool:
        """Whether the group handles no more events and the handler threads have ended."""
        return all(partition.is_stopped() for partition in self.partitions)

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """Wait for the stop, as in Service. Abandoned handlers can still be running: see `is_stopped`."""
        deadline = None if timeout is None else monotonic() + timeout
        return super().wait_for_service_to_stop(timeout) and all(
            partition.wait_for_service_to_stop(None if deadline is None else max(0.0, deadline - monotonic()))
            for partition in self.partitions
        )

    def _longest_stop_s(self) -> float:
        return self._drain_timeout_s

    def service_stop(self) -> None:
        """Drain all partitions together, then stop each, within the drain timeout."""
        if any(partition.core.queue.phase == FORKED for partition in self.partitions):
            for partition in self.partitions:
                partition.stop()  # there is nothing to wait for
            return
        deadline = monotonic() + self._drain_timeout_s
        try:
            if self._drain_on_stop and all(each.in_state(ServiceState.STARTED) for each in self.partitions):
                self._drain_together(deadline - grace_s(self._drain_timeout_s))
        except BaseException:  # KeyboardInterrupt: the waiter gave up
            deadline = 0.0
            raise
        finally:
            # Wait for all at once: each handler that hangs would otherwise cost the others their time.
            waits = [each.core.stop_wait for each in self.partitions if each.core.shut_for_stop()]
            StopWait.wait_for_all(waits, max(0.0, deadline - monotonic()))
            self._stop_children(partial(self._end_child, deadline), self.partitions)

    def _drain_together(self, drained_by: float) -> None:
        for partition in self.partitions:
            # It lingers: once drained it does not end, because handlers of the others may still post to it.
            partition.core.queue.shutdown.shut(DRAINING, lingers=True)
            partition.core.stop_wait.begin(drained_by - monotonic())
        queues = [partition.core.queue.shutdown for partition in self.partitions]
        while self.await_drained(drained_by - monotonic()):
            if QueueShutdown.end_together(queues, self._is_at_rest):
                break

    def _is_at_rest(self) -> bool:
        return all(each.core.progress.is_at_rest() for each in self.partitions)

    def _on_partition(self, partition: Service) -> None:
        """Stop the group when a partition fails: events for that partition would be stuck."""
        cause = partition.failure_cause
        if partition.in_state(ServiceState.STOPPED) and cause is not None and self.in_state(ServiceState.STARTED):
            self._note_failure(cause)
            self.stop()


class MultiDispatcher(DispatcherGroup, PostingService):
    """A DispatcherGroup of `partitions` AsyncDispatchers, named `name-0`, `name-1`, ..., behind one `post`.

    A handler is registered on each partition, so several threads call it, and the functions among its options. With a
    `journal`, a key of type str, bytes or int has the same partition in every process. In write-ahead mode,
    posts before the start raise JournalError, since unhandled events of earlier runs come first.

    Raises:
        JournalError, JournalLossError: the journal can't be opened.
    """

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        name: str = "MultiDispatcher",
        partitions: int = 4,
        journal: PartitionedJournal | None = None,
        **options: Any,
    ) -> None:
        if type(partitions) is not int:
            raise InvalidTypeError(f"partitions must be an int, not {text_of(partitions)}")
        if partitions < 1:
            raise InvalidValueError(f"partitions must be at least 1, not {partitions}")
        if not isinstance(journal, PartitionedJournal | None):
            raise InvalidTypeError(
                f"{name}: journal must be a PartitionedJournal, which has a folder for each partition, "
                f"not {text_of(journal)}"
            )
        config = dispatcher_config(config, options.pop("queue_capacity", None))
        self.settings: DispatcherConfig = config
        self.journal = journal  # never changes
        letters = options.pop("dead_letters", None)
        self._letters = Path(letters) if isinstance(letters, str | Path) else None  # never changes
        writers = (None,) * partitions if journal is None else journal.open(partitions)
        try:
            super().__init__(
                [
                    AsyncDispatcher(
                        config,
                        name=f"{name}-{number}",
                        journal=writer,
                        dead_letters=_letters_of(letters, number),
                        **options,
                    )
                    for number, writer in enumerate(writers)
                ],
                name=name,
                drain_timeout_s=config.drain_timeout_s,
                drains_on_stop=config.drain_events_on_stop,
            )
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        keys = Keys(partition.core.schedule.read_keys for partition in self.partitions)
        for partition in self.partitions:
            partition.core.schedule.keys = keys
            if (partition_letters := partition.core.errors.dead_letters) is not None:
                # Of a run with another number of partitions: another one may have the event's key now.
                partition_letters.post = lambda event, *how: self._core_of(event).queue.post_with(event, *how)
        self._logs = tuple(partition.core.queue.write_ahead for partition in self.partitions)  # never changes
        if journal is not None:
            for log in self._logs:
                log.hold()
        hash_of = hash if journal is None else _stable_hash
        self._place = _placing(partitions, hash_of)  # never changes
        self._post = _posting([partition.core.queue for partition in self.partitions], self._place, hash_of)
        if type(self).post is MultiDispatcher.post:  # one call less for each event
            self._post.__doc__ = MultiDispatcher.post.__doc__
            self.post = self._post  # type: ignore[method-assign,assignment]
        self._event_handler = DispatcherEventHandler(self.post)

    def service_start(self) -> None:
        """Move the unhandled events of earlier runs to their partitions, then start these."""
        if self.journal is not None:
            self.partitions[0].core.queue.check_not_forked()
            self.journal.place_recovered(lambda line: self._place(self._logs[0].decode(line)))
            for log in self._logs:
                log.release()
        if self._letters is not None:
            note_partitions(self._letters, 0)
        super().service_start()
        if self._letters is not None:  # only now it is certain that no other process has the folder
            note_partitions(self._letters, len(self.partitions))

    def service_stop(self) -> None:
        try:
            super().service_stop()
        finally:
            if self.journal is not None:
                self.journal.close_unused()

    def _register(self, event_class: type[Enum], part: Part) -> None:
        for partition in self.partitions:
            partition._register(event_class, part)

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a registration on each partition."""
        found = [partition.unregister(event_type, handler) for partition in self.partitions]
        return any(found)

    def queue_size(self) -> int:
        """Count the events queued in all partitions."""
        return sum(partition.queue_size() for partition in self.partitions)

    def queue_contents(self) -> dict[Enum, int]:
        """Count the queued events of all partitions by type."""
        return sums(chain.from_iterable(partition.core.queue.contents.by_type()[0] for partition in self.partitions))

    def post(self, event: HasType[Enum]) -> bool:
        """Post an event to the partition of its key."""
        return self._post(event)

    def partition_of(self, event: HasType[Enum]) -> AsyncDispatcher:
        """Return the partition that handles the event. Thread-safe."""
        return self.partitions[self._place(event)]

    def post_every(
        self, seconds: float | None = None, event: Any = None, *, key: str = "", **options: Any
    ) -> ScheduledEvent:
        """Post as AsyncDispatcher.post_every does. Each event of a factory goes to the partition of its key.

        Raises:
            ValueError: a `key` is given with a factory, whose events can go to several partitions.
            JournalError: a `key` is given in write-ahead mode before the start.
        """
        if key and event is not None and not is_member(type_of(event)):
            raise InvalidValueError(
                f"{self.name}: post_every(key={key!r}) takes an event, because the rhythm of a key is kept in the "
                "partition of its event. Post from one of `partitions` to use a factory."
            )
        return super().post_every(seconds, event, key=key, **options)

    def attempt(self) -> int:
        """Return the number of the handler's current attempt, as AsyncDispatcher.attempt does. Call it in a handler."""
        return self._handling_partition().attempt()

    def is_redelivering(self) -> bool:
        """Whether the handler's event is redelivered, as AsyncDispatcher.is_redelivering. Call it in a handler."""
        return self._handling_partition().is_redelivering()

    def _handling_partition(self) -> AsyncDispatcher:
        """The partition whose handler makes this call; any one for other callers, who handle none of its events."""
        here = (partition for partition in self.partitions if partition.core.is_handling())
        return next(here, self.partitions[0])

    def _core_of(self, event: Any) -> Core:
        return self.partition_of(event).core


def _letters_of(letters: Any, number: int) -> Any:
    """Where a partition's dead letters go: in a folder, each partition has its own."""
    return partition_path(Path(letters), number) if isinstance(letters, str | Path) else letters


def _placing(partitions: int, hash_of: Callable[[Any], int]) -> Callable[[Any], int]:
    """The function that tells the number of the partition that handles an event."""

    def place(event: Any) -> int:
        key = getattr(event, "lock_key", None)
        return 0 if key is None else hash_of(key) % partitions

    return place


def _posting(
    inboxes: Sequence[Inbox], place: Callable[[Any], int], hash_of: Callable[[Any], int]
) -> Callable[[Any], bool]:
    """The post of a MultiDispatcher with these partitions: a closure, as `Inbox.post` is one."""
    partitions, posts = len(inboxes), tuple(inbox.post for inbox in inboxes)
    parts: Any = tuple(inbox.steps() for inbox in inboxes)

    def post(event: Any) -> bool:
        return posts[place(event)](event)

    def post_plain(event: Any) -> bool:
        # `place` and the plain post of a partition, written out: each call would cost a third. See `Inbox._make_post`.
        try:
            key = event.lock_key
        except AttributeError:
            key = None
        flags, append, post_one, after, knock = parts[0 if key is None else hash_of(key) % partitions]
        if flags.gate:
            return post_one(event)  # type: ignore[no-any-return]
        append(event)  # P1
        if flags.alert:  # P2
            try:
                return after(event)  # type: ignore[no-any-return]
            except RecursionError:
                knock(SIGNAL)
                if flags.phase != RUNNING:
                    raise
        return True

    return post if None in parts else post_plain


def _stable_hash(key: Any) -> int:
    """A hash that is equal for equal keys, and for str, bytes and int the same in every process."""
    hash_of: object = type(key).__hash__  # a subclass that compares in another way has its own
    if hash_of is str.__hash__:
        return crc32(str.encode(key, "utf-8", "surrogatepass"))
    return crc32(key) if hash_of is bytes.__hash__ else hash(key)


class EventDispatcher(AsyncDispatcher):
    """An AsyncDispatcher that passes events of all classes to one handler, on a dedicated thread."""

    def __init__(
        self, handler: Handler, name: str = "EventDispatcher", *, config: DispatcherConfig | None = None, **options: Any
    ) -> None:
        self._handler = handler
        super().__init__(config, name=name, **options)

    def handle(self, event: HasType[Enum]) -> bool:
        """Queue an event and return whether it was accepted. Thread-safe."""
        return self._event_handler.handle(event)

    def _default_handler(self) -> Handler:
        return self._handler
