"""Checks transitions against the machines' tables, by the names that logs, journals and DataFrames hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from dispatcher.errors import DispatcherError
from statemachines.registry import factory_of
from statemachines.releases.differences import ANY, CURRENT, EARLY, RELEASES, ReleaseArc, differences, of_release

Arcs = Mapping[str, Mapping[str, frozenset[str]]]
"""Post states by state and event. Every state of the machine has an entry."""


class UnknownReleaseError(DispatcherError):
    """The tables of this release are not known."""

    def __init__(self, release: str) -> None:
        self.release = release
        super().__init__(f"no tables of Hadoop {release!r}; expected one of {', '.join(RELEASES)}, or {ANY!r}")


def check_release(release: str) -> None:
    """Check that `release` is one of `RELEASES` or `ANY`.

    Raises:
        UnknownReleaseError: the tables of this release aren't known.
    """
    if release not in (*RELEASES, ANY):
        raise UnknownReleaseError(release)


@cache  # bounded by the number of machines and releases: an unknown name raises
def arcs_of(machine: str, release: str = CURRENT) -> Arcs:
    """Return the table of a machine in a release of Hadoop. Thread-safe.

    `machine`: case-insensitive.
    `release`: one of `RELEASES`, or `ANY` for the arcs of all releases together.

    Raises:
        UnknownMachineError: no machine has this name.
        UnknownReleaseError: the tables of this release aren't known.
    """
    check_release(release)
    factory = factory_of(machine)
    table: dict[str, dict[str, frozenset[str]]] = {factory.initial_state.name: {}}
    for from_state, event, to_state in sorted(of_release(factory.name, _current(machine.lower()), release)):
        leaving = table.setdefault(from_state, {})
        leaving[event] = leaving.get(event, frozenset()) | {to_state}
        table.setdefault(to_state, {})
    return table


@lru_cache(maxsize=4096)  # a log repeats the same few transitions
def violation(
    machine: str, from_state: str, to_state: str, event: str | None = None, release: str = CURRENT
) -> str | None:
    """Explain in one line why the table of `machine` forbids the transition, or return None. Thread-safe.

    `event`: None matches any event, for logs that don't name it.
    `release`: as in `arcs_of`.

    Raises:
        UnknownMachineError: no machine has this name.
        UnknownReleaseError: the tables of this release aren't known.
    """
    name, arcs = _subject(machine, release), arcs_of(machine.lower(), release)
    for state in (from_state, to_state):
        if state not in arcs:
            return f"{name} has no state {state}"
    leaving = arcs[from_state]
    if event is None:
        reachable = frozenset[str]().union(*leaving.values())
        if to_state in reachable:
            return None
        return f"{name}: no event leads from {from_state} to {to_state}, only to {_listed(reachable)}"
    if event not in leaving:
        return f"{name}: {from_state} does not accept {event}, only {_listed(leaving)}"
    if to_state not in leaving[event]:
        return f"{name}: {event} does not lead from {from_state} to {to_state}, only to {_listed(leaving[event])}"
    return None


@lru_cache(maxsize=4096)
def wrong_refusal(machine: str, state: str, event: str, release: str = CURRENT) -> str | None:
    """Explain in one line why the table of `machine` must accept the event, or return None. Thread-safe.

    `release`: as in `arcs_of`. For `ANY`, one release that knows the state and rejects the event is enough.

    Raises:
        UnknownMachineError: no machine has this name.
        UnknownReleaseError: the tables of this release aren't known.
    """
    name = _subject(machine, release)
    if state not in arcs_of(machine.lower(), release):
        return f"{name} has no state {state}"
    tables = [arcs_of(machine.lower(), one) for one in (RELEASES if release == ANY else (release,))]
    known = [table[state] for table in tables if state in table]
    if known and all(event in leaving for leaving in known):
        return f"{name}: {state} takes {event}, which was rejected"
    return None


@lru_cache(maxsize=4096)
def releases_with(machine: str, from_state: str, to_state: str, event: str | None = None) -> tuple[str, ...]:
    """Return the releases of Hadoop whose tables have the transition, oldest first, possibly none. Thread-safe.

    `event`: None matches any event.

    `EARLY` stands for the releases before 2.3, whose arcs aren't all known.

    Raises:
        UnknownMachineError: no machine has this name.
    """
    name, current = factory_of(machine).name, _current(machine.lower())
    differing = differences(name, current)
    found: set[str] = set()
    for arc in of_release(name, current, ANY):
        if (arc.from_state, arc.to_state) == (from_state, to_state) and event in (None, arc.event):
            found.update(differing.get(arc, RELEASES))
    return tuple(release for release in (EARLY, *RELEASES) if release in found)


@cache  # bounded by the number of machines
def _current(machine: str) -> frozenset[ReleaseArc]:
    return frozenset(
        ReleaseArc(row.from_state.name, row.event.name, state.name)
        for row in factory_of(machine).transitions()
        for state in row.to_states
    )


def _subject(machine: str, release: str) -> str:
    name = factory_of(machine).name
    return name if release in (CURRENT, ANY) else f"{name} of Hadoop {release}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
