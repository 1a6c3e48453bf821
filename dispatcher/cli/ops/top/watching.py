"""Asks the daemon once a second on its own thread, and finds it again after a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from dispatcher.cli.ops.client import Address, Client
from dispatcher.cli.ops.errors import DoorError, ErrorAnswerError, NotThereError
from dispatcher.cli.ops.look import failures_of, problems_of, running_of, summary_of
from dispatcher.cli.ops.top.state import Look, Wish
from dispatcher.ops.answers import Page
from dispatcher.ops.dispatchers import EventTypeNumbers, Queued, QueuedEntity
from dispatcher.ops.entities import EntityDetails

INTERVAL_S: Final = 1.0
_LEAST_S: Final = 0.1
"""Least time between two looks, however fast keys are pressed."""
_TYPES: Final = 100
_ALL_TYPES: Final = 1000
_FAILURES: Final = 20
_TRANSITIONS: Final = 50
_ENTITIES: Final = 3
MACHINE: Final = " machine="
"""Separates an entity's id from its machine's name, which tells apart machines with the same id."""


class DaemonWatcher:
    """Asks one daemon for looks. One thread at a time.

    `find` takes the daemon's last address, or None at first, and returns its address now.
    """

    def __init__(self, find: Callable[[Address | None], Address]) -> None:
        self._find = find
        self._last: Address | None = None
        self._client: Client | None = None

    def look(self, wish: Wish) -> Look:
        """Ask for everything a frame shows. After a failure, the next look finds the daemon again.

        Raises:
            DoorError: no valid answer.
            OSError: the file with the token can no longer be read.
        """
        if self._client is None:
            self._last = self._find(self._last)
            self._client = Client(self._last)
        try:
            return self._ask(self._client, wish)
        except DoorError:
            self.close()
            raise

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, client: Client, wish: Wish) -> Look:
        summary, problems = summary_of(client), problems_of(client)
        at_s = time.monotonic()
        sizes = {each.name: each.queue.size for each in summary.dispatchers}
        name = wish.dispatcher if wish.dispatcher in sizes else summary.needs_attention(problems)
        entity = self._entity(client, wish.entity) if wish.entity else None
        if name is None:
            return Look(at_s, summary, None, entity=entity, problems=problems)
        limit = _ALL_TYPES if wish.wants_all_types else _TYPES
        try:
            types = client.get(Page[EventTypeNumbers], "dispatchers", name, "types", sort=wish.sort.value, limit=limit)
            return Look(
                at_s,
                summary,
                name,
                types.items,
                running_of(client, name),
                failures_of(client, name, _FAILURES),
                self._queued(client, name) if sizes[name] else None,
                entity,
                problems,
            )
        except NotThereError:
            return Look(at_s, summary, name, entity=entity, problems=problems)  # the dispatcher has stopped since

    def _queued(self, client: Client, name: str) -> Queued[QueuedEntity]:
        return client.get(Queued[QueuedEntity], "dispatchers", name, "queue", by="entity", limit=_ENTITIES)

    def _entity(self, client: Client, entity: str) -> EntityDetails | str:
        name, _, machine = entity.partition(MACHINE)
        try:
            return client.get(EntityDetails, "entities", name, machine=machine or None, limit=_TRANSITIONS)
        except ErrorAnswerError as error:
            return str(error)


class Poller:
    """Passes a look, or the exception in its place, to `hand_on` once a second, on a daemon thread.

    Any thread may call its methods.
    """

    def __init__(self, watcher: DaemonWatcher, hand_on: Callable[[Look | Exception], object]) -> None:
        self._watcher = watcher  # the poller's thread only, once started
        self._hand_on = hand_on
        self._wish = Wish()  # replaced whole by any thread; read by the poller's
        self._wake = threading.Event()
        self._is_paused = False  # written by any thread, read by the poller's
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def start(self, wish: Wish) -> None:
        self._wish = wish
        self._thread.start()

    def ask(self, wish: Wish, *, is_paused: bool = False) -> None:
        """Ask for something else from now on, starting at once; while paused, for nothing."""
        self._wish, self._is_paused = wish, is_paused
        self._wake.set()

    def stop(self) -> None:
        """Stop asking. Does not wait for a pending answer."""
        self._over.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._over.is_set():
            begin_s = time.monotonic()
            self._wake.clear()
            # After the clear: a wish or a pause that comes later wakes the wait below.
            if not self._is_paused:
                self._look()
            self._wake.wait(max(0.0, begin_s + INTERVAL_S - time.monotonic()))
            self._over.wait(max(0.0, begin_s + min(_LEAST_S, INTERVAL_S) - time.monotonic()))
        self._watcher.close()

    def _look(self) -> None:
        try:
            found: Look | Exception = self._watcher.look(self._wish)
        except Exception as error:
            found = error
        if not self._over.is_set():
            self._hand_on(found)
