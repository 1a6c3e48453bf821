"""Which of the daemons of this user on this host is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.cli.ops.errors import NoDaemonError
from dispatcher.web.doors import Door, door_folder, is_answering

_MOST_NAMED: Final = 10


def choose(wanted: str | None, doors: Sequence[Door]) -> Door:
    """The one door that is meant by a name, a process id or, if there is only one daemon, by nothing.

    Raises:
        NoDaemonError: no daemon, or more than one, is meant; the message lists what there is.
    """
    if wanted is None:
        meant = list(doors)
    else:
        meant = [door for door in doors if str(door.pid) == wanted] or [door for door in doors if door.name == wanted]
    # A socket that a killed daemon has left is not meant where another one answers.
    answering = meant if len(meant) == 1 else [door for door in meant if is_answering(door.path)]
    if len(answering) == 1:
        return answering[0]
    if len(answering) > 1:
        what = "several daemons are running" if wanted is None else f"several daemons have the name {wanted!r}"
        raise NoDaemonError(f"{what}: {_listed(answering)}; give the name, or the process id, of one of them")
    nobody = f"no daemon of this user has a door on this host, such as in {door_folder()}"
    if wanted is None:
        raise NoDaemonError(f"{nobody}; start one, or give a URL")
    others = [door for door in doors if door not in meant and is_answering(door.path)]
    there = f"there are {_listed(others)}" if others else nobody
    raise NoDaemonError(f"no daemon {wanted!r}: {there}; give a name, a process id, unix:PATH or a URL")


def _listed(doors: Sequence[Door]) -> str:
    more = len(doors) - _MOST_NAMED
    names = [f"{door.name} ({door.pid})" for door in doors[:_MOST_NAMED]]
    return ", ".join(names + ([f"and {more} more"] if more > 0 else []))
