"""Which of this user's daemons on this host a name or a process id selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.cli.ops.errors import NoDaemonError
from dispatcher.util.figures import listed
from dispatcher.web.doors import Door, door_folder, is_answering

_MOST_NAMED: Final = 10


def none_found() -> str:
    """Says that no daemon is running, and where its socket would be."""
    return f"no running daemon found for this user; a daemon opens its socket in {door_folder()}"


def choose(wanted: str | None, doors: Sequence[Door]) -> Door:
    """The door with a name or a process id; without either, the only door.

    Raises:
        NoDaemonError: no daemon matches, or several do; the message lists the running daemons.
    """
    if wanted is None:
        matching = list(doors)
    else:
        matching = [door for door in doors if str(door.pid) == wanted] or [
            door for door in doors if door.name == wanted
        ]
    # A killed daemon leaves its socket behind, so among several only those that answer count.
    answering = matching if len(matching) == 1 else [door for door in matching if is_answering(door.path)]
    if len(answering) == 1:
        return answering[0]
    if len(answering) > 1:
        what = "several daemons are running" if wanted is None else f"several daemons are named {wanted!r}"
        raise NoDaemonError(f"{what}: {_listed(answering)}; give one's name or process id")
    if wanted is None:
        raise NoDaemonError(f"{none_found()}; start one, or give a URL")
    others = [door for door in doors if door not in matching and is_answering(door.path)]
    found = f"running are {_listed(others)}" if others else none_found()
    raise NoDaemonError(f"no daemon {wanted!r}: {found}; give a name, a process id, unix:PATH or a URL")


def _listed(doors: Sequence[Door]) -> str:
    return listed([f"{door.name} ({door.pid})" for door in doors], _MOST_NAMED)
