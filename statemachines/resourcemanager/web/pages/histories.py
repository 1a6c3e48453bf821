"""The transitions of entities for the pages, from the journal or else from those that the process keeps.

Look-ups run on a thread and are kept for a moment; those of ended entities for long. A page waits half a second for one
that takes longer, and has it when it is asked for again. The loop's thread but for `_read`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.errors import JournalError
from dispatcher.metrics.entities import entity_sources
from dispatcher.ops.entities import HistoryReader, first_history, history_readers
from dispatcher.ops.journals import ScanDeadline
from dispatcher.ops.sight import Sight
from dispatcher.pages.entities import SHOWN, readers_answer
from dispatcher.view import dispatchers
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.waiting import Workers
from statemachines.resourcemanager.reports import EXIT_STATUS

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.pages.site import ClusterSite

_FRESH_S: Final = 1.5
_KEPT: Final = 2000
_SHARE: Final = 20.0
"""A history is kept for as many times what its look-up took: one that reaches far back takes a journal seconds."""
_PATIENCE_S: Final = 0.5
_LONGEST_S: Final = 0.4
_MOST: Final = 200
_ENDS: Final = frozenset({"FINISHED", "FAILED", "KILLED", "COMPLETED", "RELEASED", "EXPIRED"})


class Entered(NamedTuple):
    """An entity entered a state."""

    at_ms: int
    state: str
    from_state: str = ""
    """Empty: not known."""
    exit_status: int | None = None
    """Of a container that has failed, if the journal has it."""


class _KnownStates(NamedTuple):
    """What is known of an entity."""

    read_s: float
    """When it was read."""
    took_s: float
    moves: tuple[Entered, ...]


class Histories:
    """Looks up the moves of entities. One loop's thread."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._kept: dict[str, _KnownStates] = {}  # by entity; oldest first
        self._under_way: dict[str, asyncio.Task[None]] = {}  # by entity

    async def of(self, ids: Sequence[str]) -> Mapping[str, tuple[Entered, ...]]:
        """The moves of each, oldest first. What is not read in time is left out, or is as it was: the next call has it.

        Raises Refusal: too many look-ups are under way.
        """
        missing = [each for each in ids if each not in self._under_way and not self._is_fresh(each)]
        if missing:
            task = asyncio.create_task(self._look_up(missing))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # if no page waits any more
            self._under_way.update(dict.fromkeys(missing, task))
        tasks = {self._under_way[each] for each in ids if each in self._under_way}
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=_PATIENCE_S)
            for each in done:
                each.result()
        return {each: self._kept[each].moves for each in ids if each in self._kept}

    async def _look_up(self, ids: Sequence[str]) -> None:
        try:
            found = await self._workers.run(lambda: _read(ids))
        finally:
            for id in ids:
                del self._under_way[id]
        now_s = time.monotonic()
        for id, (moves, took_s) in found.items():
            self._kept.pop(id, None)
            self._kept[id] = _KnownStates(now_s, took_s, moves)
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def _is_fresh(self, id: str) -> bool:
        found = self._kept.get(id)
        if found is None:
            return False
        age_s = time.monotonic() - found.read_s
        return age_s < max(_FRESH_S, _SHARE * found.took_s) or bool(found.moves and found.moves[-1].state in _ENDS)


async def history_of(site: ClusterSite, id: str, sight: Sight) -> Mapping[str, Any] | None:
    """The last changes of an entity's state, for its own page; None: they cannot be had now."""
    try:
        answer = await site.rm.workers.run(lambda: readers_answer(id, None, None, SHOWN, sight, changes_only=True))
    except (Refusal, JournalError):
        return None
    found: Mapping[str, Any] = answer["history"]
    return found


def readers_now() -> list[HistoryReader]:
    """Readers of histories, with the time that a page gives them."""
    return history_readers(dispatchers(), ScanDeadline())


def _read(ids: Sequence[str]) -> dict[str, tuple[tuple[Entered, ...], float]]:
    """The moves of the first of these entities, and what each look-up has taken. On a thread of its own."""
    for source in entity_sources():
        source.find_entity(ids[0], None)  # it then publishes what has happened up to now
    readers, begun_s = readers_now(), time.monotonic()
    until_s = begun_s + _LONGEST_S
    found: dict[str, tuple[tuple[Entered, ...], float]] = {}
    for id in ids:
        if found and begun_s > until_s:
            break
        items = first_history(readers, id, None, _MOST, None, changes_only=True).items
        moves = tuple(
            Entered(each.at, each.to_state or "", each.from_state or "", _exit_status(each.payload))
            for each in reversed(items)
        )
        ended_s = time.monotonic()
        found[id] = moves, ended_s - begun_s
        begun_s = ended_s
    return found


def _exit_status(payload: str | None) -> int | None:
    """What an event's payload says of a container's end, if anything."""
    if payload is None or EXIT_STATUS not in payload:
        return None
    found = json.loads(payload).get(EXIT_STATUS)
    return found if isinstance(found, int) else None
