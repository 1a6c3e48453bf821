"""The transitions of entities for the pages, from the journal or else from those that the process keeps.

Look-ups run on a thread and are kept for a moment; those of ended entities for long. The loop's thread but for `_read`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.errors import DispatcherError
from dispatcher.metrics.entities import entity_sources
from dispatcher.ops.answers import Workers
from dispatcher.ops.entities import HistoryReader, history_readers
from dispatcher.ops.journals import Deadline
from dispatcher.util.foreign import tell
from dispatcher.view import dispatchers

log = logging.getLogger(__name__)

_FRESH_S: Final = 1.5
_KEPT: Final = 2000
_LONGEST_S: Final = 0.4
_MOST: Final = 200
_ENDS: Final = frozenset({"FINISHED", "FAILED", "KILLED", "COMPLETED", "RELEASED", "EXPIRED"})


class Move(NamedTuple):
    """An entity entered a state."""

    at_ms: int
    state: str


class Histories:
    """Looks up the moves of entities. One loop's thread."""

    def __init__(self, workers: Workers, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock_s = clock_s
        self._kept: dict[str, tuple[float, tuple[Move, ...]]] = {}  # when it was read, by entity; oldest first

    async def of(self, ids: Sequence[str]) -> Mapping[str, tuple[Move, ...]]:
        """The moves of each, oldest first; those not read in time are left out.

        Raises Refusal: too many look-ups are under way.
        """
        missing = [each for each in ids if not self._is_fresh(each)]
        if missing:
            clock_s = self._clock_s
            found = await self._workers.run(lambda: _read(missing, clock_s))
            now_s = self._clock_s()
            for id, moves in found.items():
                self._kept.pop(id, None)
                self._kept[id] = now_s, moves
            for id in list(self._kept)[: len(self._kept) - _KEPT]:
                del self._kept[id]
        return {each: self._kept[each][1] for each in ids if each in self._kept}

    def _is_fresh(self, id: str) -> bool:
        found = self._kept.get(id)
        if found is None:
            return False
        return self._clock_s() - found[0] < _FRESH_S or bool(found[1] and found[1][-1].state in _ENDS)


def sound_readers() -> list[HistoryReader]:
    """Readers of histories. A journal that cannot be read has none, so the page and the other readers go on."""
    return [_forgiving(read) for read in history_readers(dispatchers(), Deadline())]


def _forgiving(read: HistoryReader) -> HistoryReader:
    def read_or_nothing(
        entity: str, machine: str | None, limit: int, before: int | None
    ) -> tuple[list[dict[str, Any]], str | None, bool]:
        try:
            return read(entity, machine, limit, before)
        except DispatcherError as error:
            tell(log, logging.DEBUG, "a journal has no history for the pages", error=error)
            return [], None, False

    return read_or_nothing


def _read(ids: Sequence[str], clock_s: Callable[[], float]) -> dict[str, tuple[Move, ...]]:
    for source in entity_sources():
        source.find_entity(ids[0], None)  # it then publishes what has happened up to now
    readers, until_s = sound_readers(), clock_s() + _LONGEST_S
    found: dict[str, tuple[Move, ...]] = {}
    for id in ids:
        if found and clock_s() > until_s:
            break
        items: list[dict[str, Any]] = []
        for read in readers:
            items = read(id, None, _MOST, None)[0]
            if items:
                break
        found[id] = tuple(
            Move(each["at"], each["to_state"])
            for each in reversed(items)
            if each["valid"] and each["to_state"] is not None and each["to_state"] != each["from_state"]
        )
    return found
