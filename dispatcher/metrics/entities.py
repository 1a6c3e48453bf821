"""State machines, their entities and the state of each, for any thread to list.

The core knows no state machines. A package that has some implements and registers an `EntitySource`, which the ops API
and the commands list. A source answers from what the handler thread has published: it takes no lock that a handler may
hold, and never waits for the handler thread.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, Protocol, runtime_checkable

from dispatcher.util.registry import Registry


@dataclass(frozen=True, slots=True)
class MachineNow:
    """One kind of machine at one moment."""

    machine: str
    entities: dict[str, int]
    """Number of listed entities by state, without empty states."""
    transitions: int
    """Transitions made since the start, including self-transitions."""
    invalid: int
    """Events rejected since the start."""


@dataclass(frozen=True, slots=True)
class EntityNow:
    """One entity at one moment."""

    machine: str
    entity: str
    state: str
    since: float
    """When it entered the state, in Unix seconds on the run's clock. A self-transition doesn't change it."""
    data: str | None = None
    """The data that it keeps with its state, as a JSON object. Only `find_entity` has it, for entities with data."""
    last_event: str | None = None
    """The type of the event that brought it into the state, or None if it was made in it, or if that's unknown."""


@dataclass(frozen=True, slots=True)
class EntityPage:
    """A page of a machine's entities, in the order of their ids."""

    items: Sequence[EntityNow]
    has_more: bool
    total: int | None
    """Matching entities on all pages, or None if only a walk over all entities could count them."""


class EntitySource(Protocol):
    """Lists machines, their entities and the states of these. Any thread calls it, and it never waits for a handler."""

    def machine_numbers(self) -> Sequence[MachineNow]:
        """Return the numbers of every kind of machine."""

    def entities(
        self, machine: str, *, state: str | None = None, prefix: str = "", after: str = "", limit: int = 100
    ) -> EntityPage:
        """Return up to `limit` entities of a machine by id: in this state, with this prefix, beyond the id `after`."""

    def find_entity(self, entity: str, machine: str | None = None) -> Sequence[EntityNow]:
        """Return the entities with this id: one per machine, or the one of `machine`."""

    def initial_state(self, machine: str) -> str | None:
        """Return the initial state of a machine's entities, or None if it's unknown."""


class DeclaredTransition(NamedTuple):
    """A transition that a machine's table allows."""

    from_state: str
    event_type: str
    to_state: str


@runtime_checkable
class DeclaringSource(Protocol):
    """An EntitySource that also knows the tables of its machines, so that pages can draw them."""

    def declared_transitions(self, machine: str) -> Sequence[DeclaredTransition]:
        """Return the transitions that the machine's table allows, or nothing if it's unknown. Any thread calls it."""


_sources: Registry[EntitySource] = Registry()


def register_entities(source: EntitySource) -> None:
    """List the entities of `source` for as long as it lives. You can call this from any thread, repeatedly."""
    _sources.add(source)


def entity_sources() -> list[EntitySource]:
    """Every registered source that lives. Any thread."""
    return _sources.all()


def declared_transitions(machine: str) -> Sequence[DeclaredTransition]:
    """What the table of a machine allows; nothing if no source knows it."""
    found = (each.declared_transitions(machine) for each in entity_sources() if isinstance(each, DeclaringSource))
    return next(filter(None, found), ())


def all_machines(sources: Iterable[EntitySource]) -> list[MachineNow]:
    """The kinds of machine of all sources by name; the numbers of one name are added up."""
    found: dict[str, MachineNow] = {}
    for source in sources:
        for each in source.machine_numbers():
            other = found.get(each.machine)
            found[each.machine] = each if other is None else _sum(other, each)
    return [found[machine] for machine in sorted(found)]


def all_entities(
    sources: Iterable[EntitySource],
    machine: str,
    *,
    state: str | None = None,
    prefix: str = "",
    after: str = "",
    limit: int = 100,
) -> EntityPage:
    """Up to `limit` entities of a machine from all sources, merged by id, as one page."""
    pages = [source.entities(machine, state=state, prefix=prefix, after=after, limit=limit) for source in sources]
    merged = list(islice(heapq.merge(*(page.items for page in pages), key=attrgetter("entity")), limit + 1))
    totals = [page.total for page in pages]
    return EntityPage(
        merged[:limit],
        len(merged) > limit or any(page.has_more for page in pages),
        None if None in totals else sum(total for total in totals if total is not None),
    )


def _sum(one: MachineNow, other: MachineNow) -> MachineNow:
    entities = Counter(one.entities)
    entities.update(other.entities)
    return MachineNow(one.machine, dict(entities), one.transitions + other.transitions, one.invalid + other.invalid)
