"""Entities in the ops API: the kinds of state machine, their entities, and the history of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dispatcher.errors import JournalError
from dispatcher.journal.format.partitions import read_partitions
from dispatcher.journal.history import HistoryRow, entity_history
from dispatcher.metrics.entities import (
    EntityNow,
    EntitySource,
    all_entities,
    all_machines,
    entity_sources,
)
from dispatcher.metrics.transition_ring import KeptTransition, TransitionRing, ring
from dispatcher.ops.journals import Deadline
from dispatcher.util.units import NS_PER_S, milliseconds
from dispatcher.view import DispatcherView
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import listed

_NS_PER_MS = 1_000_000
_ROWS_OF_AN_EVENT = 100
"""More than an event has about one entity."""
_AGAIN = "ask again: the next look-up goes on from what was read"


def machine_items() -> list[dict[str, Any]]:
    """The items of /machines, by name."""
    return [
        {
            "machine": each.machine,
            "entities": each.entities,
            "transitions": each.transitions,
            "invalid": each.invalid,
        }
        for each in all_machines(entity_sources())
    ]


def entity_page(machine: str, state: str | None, prefix: str, after: str, limit: int) -> dict[str, Any]:
    """The answer of /machines/{machine}/entities. Raises Refusal (404)."""
    sources = entity_sources()
    page = all_entities(sources, machine, state=state, prefix=prefix, after=after, limit=limit)
    if not page.items and not _knows(sources, machine):
        known = ", ".join(each.machine for each in all_machines(sources)) or "none"
        raise Refusal(404, f"no state machine {machine!r} in this process; known: {known}")
    items = [{"id": each.entity, "state": each.state, "since": milliseconds(each.since)} for each in page.items]
    return listed(items, page.items[-1].entity if page.has_more else None, page.total)


class HistoryReader(Protocol):
    """Reads a page of an entity's history, newest first, and says whether it reaches back to the beginning."""

    def __call__(
        self, entity: str, machine: str | None, limit: int, before: int | None, *, changes_only: bool = False
    ) -> tuple[list[dict[str, Any]], str | None, bool]:
        """The items, the cursor of the next page, and whether the last item is the entity's first.

        An item also has the event's `payload`, if that is known. `changes_only`: only changes of state.
        """


def from_journal(path: Path, deadline: Deadline) -> HistoryReader:
    """The history of entities from a journal. Raises JournalError where it cannot be read."""

    def read(
        entity: str, machine: str | None, limit: int, before: int | None, *, changes_only: bool = False
    ) -> tuple[list[dict[str, Any]], str | None, bool]:
        on_pause = partial(deadline.check, _AGAIN)
        found = entity_history(
            path,
            entity,
            machine=machine,
            limit=limit,
            before_seq=before,
            changes_only=changes_only,
            on_pause=on_pause,
        )
        items = [_journal_item(row) for row in found.transitions]
        return items, str(items[-1]["seq"]) if items and not found.complete else None, found.complete

    return read


def from_partitions(path: Path, deadline: Deadline) -> HistoryReader:
    """The history of entities from a partitioned journal: `before` is the number of rows on the pages before.

    Raises JournalError where it cannot be read.
    """

    def read(
        entity: str, machine: str | None, limit: int, before: int | None, *, changes_only: bool = False
    ) -> tuple[list[dict[str, Any]], str | None, bool]:
        begin, end = before or 0, (before or 0) + limit
        # The rows of an event come together or not at all, so a page may need some more.
        most = end + _ROWS_OF_AN_EVENT
        on_pause = partial(deadline.check, _AGAIN)
        found = entity_history(path, entity, machine=machine, limit=most, changes_only=changes_only, on_pause=on_pause)
        items = [_journal_item(row) for row in found.transitions[begin:end]]
        is_complete = found.complete and len(found.transitions) <= end
        return items, str(end) if items and not is_complete else None, is_complete

    return read


def from_ring(kept: TransitionRing, initial_state: Callable[[str], str | None]) -> HistoryReader:
    """The history of entities from the transitions that the process keeps."""

    def read(
        entity: str, machine: str | None, limit: int, before: int | None, *, changes_only: bool = False
    ) -> tuple[list[dict[str, Any]], str | None, bool]:
        found = kept.history(entity, machine, limit=limit, before=before, changes_only=changes_only)
        items = [_ring_item(row) for row in found.transitions]
        is_complete = not found.has_more and (
            found.is_whole or bool(items and items[-1]["from_state"] == initial_state(items[-1]["machine"]))
        )
        return items, str(items[-1]["seq"]) if found.has_more else None, is_complete

    return read


def history_readers(views: Iterable[DispatcherView], deadline: Deadline) -> list[HistoryReader]:
    """Readers of the dispatchers' journals, and of the transitions that the process keeps.

    A dispatcher that has stopped may outlive its journal: a folder that is gone has no reader. The readers of journals
    raise Refusal (503) once the deadline has passed.
    """
    paths = dict.fromkeys(path for view in views if (path := view.journal_path) is not None and path.exists())
    # An entity may have rows in several partitions: an earlier run may have had another number of them.
    wholes = dict.fromkeys(path.parent for path in paths if read_partitions(path.parent)[0] is not None)
    single = (path for path in paths if path.parent not in wholes)
    return [
        *(from_partitions(path, deadline) for path in wholes),
        *(from_journal(path, deadline) for path in single),
        from_ring(ring, _initial_state),
    ]


class FirstHistory(NamedTuple):
    """A page of an entity's history from the first reader that has any of it, as HistoryReader gives it."""

    items: list[dict[str, Any]]
    next: str | None
    is_complete: bool
    unreadable: JournalError | None
    """No reader has any of it, and this journal might: it cannot be read."""


def first_history(
    readers: Iterable[HistoryReader],
    entity: str,
    machine: str | None,
    limit: int,
    before: int | None,
    *,
    changes_only: bool = False,
) -> FirstHistory:
    """The history from the first of `readers` that has any; a journal that cannot be read leaves it to the others."""
    unreadable = None
    for read in readers:
        try:
            items, next, is_complete = read(entity, machine, limit, before, changes_only=changes_only)
        except JournalError as error:
            unreadable = unreadable or error
            continue
        if items:
            return FirstHistory(items, next, is_complete, None)
    return FirstHistory([], None, is_complete=False, unreadable=unreadable)


def _initial_state(machine: str) -> str | None:
    return next((found for source in entity_sources() if (found := source.initial_state(machine)) is not None), None)


def entity_answer(
    entity: str,
    machine: str | None,
    limit: int,
    before: int | None,
    readers: list[HistoryReader],
    *,
    changes_only: bool = False,
) -> dict[str, Any]:
    """The answer of /entities/{id}: its state, and its history from the first of `readers` that knows it.

    `changes_only`: of the history, only changes of state.

    Raises:
        Refusal: 404, it is unknown; 400, several machines have an entity of this id; 503, a journal took too long.
        JournalError: it is not in memory, and a journal that might have it cannot be read.
    """
    # Before the history: a source publishes what has happened up to now when it is asked.
    found = [now for source in entity_sources() for now in source.find_entity(entity, machine)]
    if machine is None and len({now.machine for now in found}) > 1:
        names = " or ".join(sorted({f"machine={now.machine}" for now in found}))
        raise Refusal(400, f"several machines have an entity {entity!r}; choose {names}")
    items, next, is_complete, unreadable = first_history(
        readers, entity, machine, limit, before, changes_only=changes_only
    )
    if not found and unreadable is not None:
        raise unreadable
    if not found and not items and before is None:
        of = f" of machine {machine!r}" if machine is not None else ""
        raise Refusal(404, f"no entity {entity!r}{of} is in memory or in a journal of this process")
    return {
        "id": entity,
        **_present(found[0] if found else None, items, machine, is_newest=before is None),
        "history": listed([{name: item[name] for name in item if name != "payload"} for item in items], next, None),
        "complete": is_complete,
    }


def _present(
    now: EntityNow | None, items: list[dict[str, Any]], machine: str | None, *, is_newest: bool
) -> dict[str, Any]:
    """Machine, state and since: as listed; of an entity that is no longer kept, from its last transitions."""
    if now is not None:
        return {"machine": now.machine, "state": now.state, "since": milliseconds(now.since), "is_kept": True}
    moves = [item for item in items if item["to_state"] is not None and item["valid"]]
    if not moves or not is_newest:
        return {"machine": machine, "state": None, "since": None, "is_kept": False}
    last = moves[0]["to_state"]
    entered = next((item for item in moves if item["from_state"] != last), None)
    return {
        "machine": moves[0]["machine"],
        "state": last,
        "since": entered["at"] if entered is not None else None,
        "is_kept": False,
    }


def _knows(sources: list[EntitySource], machine: str) -> bool:
    return any(each.machine == machine for source in sources for each in source.machine_numbers())


def _journal_item(row: HistoryRow) -> dict[str, Any]:
    return {
        "at": row.at // _NS_PER_MS,
        "seq": row.seq,
        "machine": row.machine,
        "from_state": row.from_state or "",  # of an event that made no transition
        "event_type": row.event_type,
        "to_state": row.to_state,
        "valid": row.valid is not False,
        "wait_s": _seconds(row.queue_ns),
        "handling_s": _seconds(row.handling_ns),
        "error": row.error,
        "payload": row.payload,
    }


def _ring_item(row: KeptTransition) -> dict[str, Any]:
    return {
        "at": row.at // _NS_PER_MS,
        "seq": row.number,
        "machine": row.machine,
        "from_state": row.from_state,
        "event_type": row.event_type,
        "to_state": row.to_state,
        "valid": row.valid,
        "wait_s": None,
        "handling_s": None,
        "error": None,
        "payload": None,
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S
