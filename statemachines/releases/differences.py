"""The arcs that not every release declares, by machine.

The other modules of this package list them. `NEW_IN_3` names the states and events of a machine that no release before
Hadoop 3 has: an arc with one of them is of Hadoop 3 alone. `ROWS` has any other arc, one a line: machine, from_state,
event, to_state and, joined by `|`, the releases that declare it. An arc of Hadoop 3 that is in neither is also an arc
of 2.4 and 2.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from statemachines.releases import mapreduce, nodemanager, resourcemanager

CURRENT = "3"
RELEASES = ("2.4", "2.7", CURRENT)
"""The releases whose tables are known as a whole, from the oldest to the newest."""
EARLY = "2.0"
"""The releases before 2.3. Their tables are not known as a whole: an arc names them where it was seen in one."""
ANY = "any"
"""The arcs of all releases together."""


class ReleaseArc(NamedTuple):
    from_state: str
    event: str
    to_state: str


@cache  # bounded by the number of machines
def differences(machine: str, arcs: frozenset[ReleaseArc]) -> Mapping[ReleaseArc, tuple[str, ...]]:
    """The releases that declare an arc of a machine whose arcs in Hadoop 3 are `arcs`, oldest first. Any thread.

    An arc on which the releases agree has no entry.
    """
    found: dict[ReleaseArc, tuple[str, ...]] = {}
    for module in (resourcemanager, mapreduce, nodemanager):
        new = set(module.NEW_IN_3.get(machine, "").split())
        found.update((arc, (CURRENT,)) for arc in arcs if not new.isdisjoint(arc))
        for line in module.ROWS.splitlines():
            of_machine, from_state, event, to_state, releases = line.split(",")
            if of_machine == machine:
                found[ReleaseArc(from_state, event, to_state)] = tuple(releases.split("|"))
    return found


def of_release(machine: str, arcs: frozenset[ReleaseArc], release: str) -> frozenset[ReleaseArc]:
    """The arcs that `release`, one of `RELEASES` or `ANY`, declares for a machine whose arcs in Hadoop 3 are `arcs`."""
    differing = differences(machine, arcs)
    if release == ANY:
        return arcs | differing.keys()
    return (arcs - differing.keys()) | {arc for arc, releases in differing.items() if release in releases}
