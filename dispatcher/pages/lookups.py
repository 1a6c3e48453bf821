"""What pages look up in files: one look-up at a time, each kept for as many times what it took as it may cost.

A page waits a moment for a look-up that takes longer, and has it when it is made again. The loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import describe
from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.waiting import Workers

_FRESH_S: Final = 1.0
_SHARE: Final = 20.0
"""A look-up is kept for as many times what it took: pages that are followed take a twentieth of a core at most."""
_PATIENCE_S: Final = 0.05
_MOST: Final = 50
_MOST_WAITING: Final = 8
"""Look-ups that have begun or wait for their turn: each asks for something else, and may take seconds."""


class Looked(NamedTuple):
    """What a look-up has found."""

    value: Any = None
    problem: str = ""
    """Why it has found nothing."""


_UNREADABLE: Final = (DispatcherError, OSError, ValueError, LookupError, TypeError, RecursionError)
"""What reading a file raises that is gone, or that holds something else."""
_READING: Final = Looked(problem="It is being read.")
_BUSY: Final = Looked(problem="Too much else is being read. Reload the page to try again.")


class _KeptAnswer(NamedTuple):
    looked: Looked
    made_s: float
    took_s: float


class Lookups:
    """Look-ups of one site, on its `scans`."""

    def __init__(self, scans: Workers, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._scans = scans
        self._clock_s = clock_s
        self._turn = asyncio.Lock()  # the scans take one at a time, and refuse another
        self._kept: dict[Any, _KeptAnswer] = {}  # oldest first
        self._tasks: dict[Any, asyncio.Task[Looked]] = {}
        self._unkept = 0  # look-ups without a key that have not ended

    async def look(self, key: Any, function: Callable[[], Any]) -> Looked:
        """The result of `function` on a thread, or of the last call with this key; None as key: it is not kept."""
        is_busy = len(self._tasks) + self._unkept >= _MOST_WAITING
        if key is None:
            return _BUSY if is_busy else await self._look_alone(function)
        kept = self._kept.get(key)
        if kept is not None and self._clock_s() - kept.made_s < max(_FRESH_S, _SHARE * kept.took_s):
            return kept.looked
        task = self._tasks.get(key)
        if task is None:
            if is_busy:
                return kept.looked if kept is not None else _BUSY
            task = self._tasks[key] = asyncio.ensure_future(self._keep(key, function))
        done, _ = await asyncio.wait({task}, timeout=_PATIENCE_S)
        if done:
            return task.result()
        return kept.looked if kept is not None else _READING

    async def _look_alone(self, function: Callable[[], Any]) -> Looked:
        self._unkept += 1
        try:
            return (await self._make(function)).looked
        finally:
            self._unkept -= 1

    async def _keep(self, key: Any, function: Callable[[], Any]) -> Looked:
        try:
            made = await self._make(function)
            self._kept.pop(key, None)
            self._kept[key] = made
            for old in list(self._kept)[:-_MOST]:
                del self._kept[old]
            return made.looked
        finally:
            del self._tasks[key]

    async def _make(self, function: Callable[[], Any]) -> _KeptAnswer:
        async with self._turn:
            begun_s = self._clock_s()
            try:
                looked = Looked(await self._scans.run(function))
            except Refusal as error:
                looked = Looked(problem=error.reason)
            except _UNREADABLE as error:
                looked = Looked(problem=one_line(str(error) if isinstance(error, DispatcherError) else describe(error)))
            now_s = self._clock_s()
            return _KeptAnswer(looked, now_s, now_s - begun_s)
