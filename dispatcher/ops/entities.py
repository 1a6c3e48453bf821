"""Entities in the ops API: the kinds of state machine, their entities, and the history of one."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pydantic import Field

from dispatcher.errors import JournalError
from dispatcher.journal.format.entity_data import fields_in
from dispatcher.journal.format.partitions import read_partitions
from dispatcher.journal.history import EntityHistory, HistoryRow, entity_history
from dispatcher.metrics.entities import (
    EntityNow,
    EntityPage,
    EntitySource,
    all_entities,
    all_machines,
    entity_sources,
)
from dispatcher.metrics.transition_ring import KeptTransition, TransitionRing, ring
from dispatcher.ops.answers import MOST_SEQ, Answer, Gets, Page, Real, UnixMs, Whole, page_of
from dispatcher.ops.journals import ScanDeadline
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.util.units import NS_PER_MS, NS_PER_S, milliseconds
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import MOST, limit_of, number

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView


_ROWS_OF_AN_EVENT = 100
"""More than an event has about one entity."""
_MOST_LOOKED = 10_000
"""Entities examined for one page, if the user may not see all of them."""
_NONCE_BYTES = 8
_CURSOR_KEY = secrets.token_bytes(16)
_AGAIN = "ask again: the next look-up goes on from what was read"


class MachineCounts(Answer):
    """One of `/machines`. `entities`: by state."""

    machine: str
    entities: dict[str, Whole] = {}
    transitions: Whole = 0
    invalid: Whole = 0


class ListedEntity(Answer):
    """One of `/machines/{machine}/entities`."""

    id: str
    state: str
    since: UnixMs
    last_event: str | None = None
    """The type of the event that brought it into the state."""


class HistoryEntry(Answer):
    """A row of an entity's history: a transition, or an event that caused none."""

    at: UnixMs
    seq: Whole | None = None
    from_state: str | None = None
    event_type: str | None = None
    to_state: str | None = None
    valid: bool | None = None
    machine: str | None = None
    wait_s: Real | None = None
    handling_s: Real | None = None
    error: str | None = None
    data: dict[str, Any] | None = None
    """The data that the entity keeps with its state, if this transition changed it."""
    payload: str | None = Field(default=None, exclude=True)
    """Of the event, if its journal has it. It is not sent."""

    @property
    def what(self) -> str:
        """`NEW -> SUBMITTED on START`."""
        change = " -> ".join(each for each in (self.from_state, self.to_state) if each)
        return f"{change or 'no transition'} on {self.event_type or '?'}"


class EntityDetails(Answer):
    """`/entities/{id}`."""

    id: str
    machine: str | None = None
    state: str | None = None
    since: UnixMs | None = None
    is_kept: bool = True
    data: dict[str, Any] | None = None
    """The data that it keeps with its state."""
    history: Page[HistoryEntry]
    complete: bool = True


def machine_items() -> list[MachineCounts]:
    """The items of /machines, by name."""
    return [
        MachineCounts(
            machine=each.machine,
            entities=dict(each.entities),
            transitions=each.transitions,
            invalid=each.invalid,
        )
        for each in all_machines(entity_sources())
    ]


def entity_page(
    machine: str, state: str | None, prefix: str, after: str, limit: int, sight: Sight = WHOLE
) -> Page[ListedEntity]:
    """The answer of /machines/{machine}/entities. Raises Refusal (404)."""
    sources = entity_sources()
    of_machine = partial(all_entities, sources, machine, state=state, prefix=prefix)
    page, cursor = _page_of(of_machine, after, limit) if sight.is_whole else _visible(of_machine, after, limit, sight)
    if not page.items and not _knows(sources, machine):
        known = ", ".join(each.machine for each in all_machines(sources)) or "none"
        raise Refusal(404, f"no state machine {machine!r} in this process; known: {known}")
    items = [
        ListedEntity(id=each.entity, state=each.state, since=milliseconds(each.since), last_event=each.last_event)
        for each in page.items
    ]
    return Page(items=items, next=cursor, total=page.total)


def _page_of(of_machine: Callable[..., EntityPage], after: str, limit: int) -> tuple[EntityPage, str | None]:
    page = of_machine(after=after, limit=limit)
    return page, page.items[-1].entity if page.has_more else None


def _visible(
    of_machine: Callable[..., EntityPage], after: str, limit: int, sight: Sight
) -> tuple[EntityPage, str | None]:
    """A page of the entities that the user may see. The others are skipped, aren't counted, and no cursor names one.

    It looks at `_MOST_LOOKED` entities at most, so the page may be short, or empty, and have another one behind it.
    Raises Refusal (400): this process has made no such cursor.
    """
    found: list[EntityNow] = []
    after = _unveiled(after) if after else ""
    for _ in range(_MOST_LOOKED // MOST):
        page = of_machine(after=after, limit=MOST)
        found += [each for each in page.items if sight.sees(each.entity)]
        if len(found) > limit:
            return EntityPage(found[:limit], True, None), _veiled(found[limit - 1].entity)
        if not page.has_more:
            return EntityPage(found, False, None), None
        after = page.items[-1].entity
    return EntityPage(found, True, None), _veiled(after)


def _veiled(entity: str) -> str:
    """The id as a cursor from which only this process can read it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return (nonce + _mixed(entity.encode("utf-8", "surrogatepass"), nonce)).hex()


def _unveiled(cursor: str) -> str:
    try:
        found = bytes.fromhex(cursor)
        return _mixed(found[_NONCE_BYTES:], found[:_NONCE_BYTES]).decode("utf-8", "surrogatepass")
    except ValueError:
        raise Refusal(400, f"after={cursor[:100]}: expected the cursor of the page before; begin again") from None


def _mixed(text: bytes, nonce: bytes) -> bytes:
    stream = hashlib.shake_256(_CURSOR_KEY + nonce).digest(len(text))
    return bytes(each ^ other for each, other in zip(text, stream, strict=True))


class WantedHistory(NamedTuple):
    """Which rows of an entity's history to look up: the newest `limit` rows, or an older page of them."""

    entity: str
    machine: str | None
    limit: int
    before: int | None
    """The cursor of the page, as the page before gave it."""
    changes_only: bool = False
    """Only changes of state."""


class FoundHistory(NamedTuple):
    """A page of an entity's history, newest first."""

    items: list[HistoryEntry]
    next: str | None
    """The cursor of the next page."""
    is_complete: bool
    """The last item is the entity's first."""
    unreadable: JournalError | None = None
    """No reader has any of it, and this journal might: it cannot be read."""


HistoryReader: TypeAlias = Callable[[WantedHistory], FoundHistory]
"""Raises JournalError where the journal cannot be read."""


def from_journal(path: Path, deadline: ScanDeadline) -> HistoryReader:
    """The history of entities from a journal."""

    def read(wanted: WantedHistory) -> FoundHistory:
        found = _history(path, wanted, deadline, wanted.limit, wanted.before)
        items = [_of_row(row) for row in found.transitions]
        return FoundHistory(items, str(items[-1].seq) if items and not found.complete else None, found.complete)

    return read


def from_partitions(path: Path, deadline: ScanDeadline) -> HistoryReader:
    """The history of entities from a partitioned journal. The cursor is the number of rows on the pages before."""

    def read(wanted: WantedHistory) -> FoundHistory:
        begin = wanted.before or 0
        end = begin + wanted.limit
        # The rows of an event come together or not at all, so a page may need some more.
        found = _history(path, wanted, deadline, end + _ROWS_OF_AN_EVENT, None)
        items = [_of_row(row) for row in found.transitions[begin:end]]
        is_complete = found.complete and len(found.transitions) <= end
        return FoundHistory(items, str(end) if items and not is_complete else None, is_complete)

    return read


def _history(
    path: Path, wanted: WantedHistory, deadline: ScanDeadline, limit: int, before_seq: int | None
) -> EntityHistory:
    return entity_history(
        path,
        wanted.entity,
        machine=wanted.machine,
        limit=limit,
        before_seq=before_seq,
        changes_only=wanted.changes_only,
        on_pause=partial(deadline.check, _AGAIN),
    )


def from_ring(kept: TransitionRing, initial_state: Callable[[str], str | None]) -> HistoryReader:
    """The history of entities from the transitions that the process keeps."""

    def read(wanted: WantedHistory) -> FoundHistory:
        entity, machine, limit, before, changes_only = wanted
        found = kept.history(entity, machine, limit=limit, before=before, changes_only=changes_only)
        rows = found.transitions
        is_complete = not found.has_more and (
            found.is_whole or bool(rows and rows[-1].from_state == initial_state(rows[-1].machine))
        )
        next = str(rows[-1].number) if found.has_more else None
        return FoundHistory([_of_kept(row) for row in rows], next, is_complete)

    return read


def history_readers(views: Iterable[DispatcherView], deadline: ScanDeadline) -> list[HistoryReader]:
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


def first_history(
    readers: Iterable[HistoryReader],
    entity: str,
    machine: str | None,
    limit: int,
    before: int | None,
    *,
    changes_only: bool = False,
) -> FoundHistory:
    """The history from the first of `readers` that has any; a journal that cannot be read leaves it to the others."""
    unreadable = None
    for read in readers:
        try:
            found = read(WantedHistory(entity, machine, limit, before, changes_only))
        except JournalError as error:
            unreadable = unreadable or error
            continue
        if found.items:
            return found
    return FoundHistory([], None, is_complete=False, unreadable=unreadable)


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
    sight: Sight = WHOLE,
) -> EntityDetails:
    """The answer of /entities/{id}: its state, and its history from the first of `readers` that knows it.

    Errors are for those who may see everything: they can contain anything.

    Raises:
        Refusal: 403, the user may not see it; 404, it is unknown; 400, several machines have an entity of this id;
            503, a journal took too long.
        JournalError: it is not in memory, and a journal that might have it cannot be read.
    """
    sight.check(entity)
    # Before the history: a source publishes what has happened up to now when it is asked.
    found = [now for source in entity_sources() for now in source.find_entity(entity, machine)]
    if machine is None and len({now.machine for now in found}) > 1:
        names = " or ".join(sorted({f"machine={now.machine}" for now in found}))
        raise Refusal(400, f"several machines have an entity {entity!r}; choose {names}")
    items, cursor, is_complete, unreadable = first_history(
        readers, entity, machine, limit, before, changes_only=changes_only
    )
    if not sight.is_whole:
        items = [item.model_copy(update={"error": None}) for item in items]
    if not found and unreadable is not None:
        raise unreadable
    if not found and not items and before is None:
        of = f" of machine {machine!r}" if machine is not None else ""
        raise Refusal(404, f"no entity {entity!r}{of} is in memory or in a journal of this process")
    state: str | None
    since: int | None
    if found:
        now = found[0]
        machine, state, since = now.machine, now.state, milliseconds(now.since)
        data = None if now.data is None else json.loads(now.data)
    else:
        machine, state, since = _last_known(items, machine, is_newest=before is None)
        data = next((item.data for item in items if item.data is not None and before is None), None)
    return EntityDetails(
        id=entity,
        machine=machine,
        state=state,
        since=since,
        is_kept=bool(found),
        data=data,
        history=Page[HistoryEntry](items=items, next=cursor, total=None),
        complete=is_complete,
    )


def _last_known(
    items: list[HistoryEntry], machine: str | None, *, is_newest: bool
) -> tuple[str | None, str | None, int | None]:
    """Machine, state and since of an entity that is no longer kept, from its last transitions."""
    moves = [item for item in items if item.to_state is not None and item.valid]
    if not moves or not is_newest:
        return machine, None, None
    last = moves[0].to_state
    entered = next((item for item in moves if item.from_state != last), None)
    return moves[0].machine, last, entered.at if entered is not None else None


def _knows(sources: list[EntitySource], machine: str) -> bool:
    return any(each.machine == machine for source in sources for each in source.machine_numbers())


def _of_row(row: HistoryRow) -> HistoryEntry:
    return HistoryEntry(
        at=row.at // NS_PER_MS,
        seq=row.seq,
        machine=row.machine,
        from_state=row.from_state or "",  # of an event that made no transition
        event_type=row.event_type,
        to_state=row.to_state,
        valid=row.valid is not False,
        wait_s=_seconds(row.queue_ns),
        handling_s=_seconds(row.handling_ns),
        error=row.error,
        data=None if row.data is None else json.loads(fields_in(row.data)),
        payload=row.payload,
    )


def _of_kept(row: KeptTransition) -> HistoryEntry:
    return HistoryEntry(
        at=row.at // NS_PER_MS,
        seq=row.number,
        machine=row.machine,
        from_state=row.from_state,
        event_type=row.event_type,
        to_state=row.to_state,
        valid=row.valid,
        wait_s=None,
        handling_s=None,
        error=None,
        data=None,
    )


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _machines(ops: Ops, request: Request) -> Page[MachineCounts]:
    return page_of(request, await ops.workers.run(machine_items))


async def _machine_entities(ops: Ops, request: Request) -> Page[ListedEntity]:
    query, limit = request.query_params, limit_of(request)
    machine, state = request.path_params["machine"], query.get("state")
    prefix, after = query.get("prefix", ""), query.get("after", "")
    sight = await ops.sight(request)
    return await ops.workers.run(lambda: entity_page(machine, state, prefix, after, limit, sight))


async def _entity(ops: Ops, request: Request) -> EntityDetails:
    entity, machine = request.path_params["id"], request.query_params.get("machine")
    limit, before = limit_of(request), number(request, "after", None, 0, MOST_SEQ)
    readers, sight = history_readers(ops.views(), ScanDeadline()), await ops.sight(request)
    return await ops.workers.run(lambda: entity_answer(entity, machine, limit, before, readers, sight=sight))


GETS: Final[Gets] = {
    "/machines": _machines,
    "/machines/{machine:path}/entities": _machine_entities,
    "/entities/{id:path}": _entity,
}
