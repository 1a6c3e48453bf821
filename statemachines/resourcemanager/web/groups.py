"""The groups of users, as this machine knows them: what Hadoop's ShellBasedUnixGroupsMapping finds."""

from __future__ import annotations

import asyncio
import grp
import logging
import math
import os
import pwd
import time
from collections.abc import Callable
from typing import Final

from dispatcher.util.foreign import tell
from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.waiting import Workers

log: logging.Logger = logging.getLogger(__name__)

KEPT_S: Final = 300.0
"""How long the groups of a user are kept: Hadoop's default of hadoop.security.groups.cache.secs."""
_MOST_KEPT: Final = 10_000
_LONGEST_S: Final = 2.0
_THREADS: Final = 4
_NONE: Final[frozenset[str]] = frozenset()


def groups_of_machine(user: str) -> frozenset[str]:
    """The names of a user's groups; none for a user that this machine does not know. May ask servers on the network."""
    try:
        known = pwd.getpwnam(user)
        ids = os.getgrouplist(user, known.pw_gid)
    except (KeyError, OSError, ValueError):
        return _NONE
    names = set()
    for id in ids:
        try:
            names.add(grp.getgrgid(id).gr_name)
        except KeyError:  # a group without a name
            continue
    return frozenset(names)


class Groups:
    """Groups by user, looked up on threads and kept for five minutes. One loop's thread."""

    def __init__(
        self,
        look_up: Callable[[str], frozenset[str]] = groups_of_machine,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look_up` may block. `now_s` is monotonic."""
        self._workers = Workers(_THREADS)  # of its own: to be refused a thread is to be refused access
        self._turns = asyncio.Semaphore(_THREADS)
        self._look_up = look_up
        self._now_s = now_s
        self._kept: dict[str, tuple[float, frozenset[str]]] = {}  # by user: until when, and the groups; by age
        self._looking: dict[str, asyncio.Task[frozenset[str]]] = {}  # by user: all that ask meanwhile share it

    async def of(self, user: str) -> frozenset[str]:
        """The user's groups. If they cannot be found out in time: those known before, or none."""
        until_s, groups = self._kept.get(user, (-math.inf, _NONE))
        if self._now_s() < until_s:
            return groups
        looking = self._looking.get(user)
        if looking is None:
            looking = self._looking[user] = asyncio.ensure_future(self._found(user, groups))
            looking.add_done_callback(lambda _: self._looking.pop(user, None))
        return await asyncio.shield(looking)  # a client that leaves must not take them from the others

    async def _found(self, user: str, before: frozenset[str]) -> frozenset[str]:
        try:
            async with asyncio.timeout(_LONGEST_S), self._turns:
                groups = await self._workers.run(lambda: self._look_up(user), _LONGEST_S)
        except (Refusal, TimeoutError):
            tell(log, logging.WARNING, "the groups of user %s could not be found out in time", one_line(user))
            return before
        self._kept.pop(user, None)
        while len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[user] = self._now_s() + KEPT_S, groups
        return groups
