"""Waiting applications by cause: how many, and since when.

The handler thread is asked in rounds why they wait, a thousand applications at a time. For 5,000 of them a round begins
every second while there are readers. Without readers there are fewer rounds, but enough that the next reader finds an
answer. The groups are made once for each publication and round. No page waits for a round for longer than a moment.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import tell
from statemachines.resourcemanager.read.fields import WAITING
from statemachines.resourcemanager.read.loop_follower import LoopFollower, is_cancelled
from statemachines.resourcemanager.reports import ApplicationReport, AppWait, WaitCause, view_key

if TYPE_CHECKING:
    from statemachines.resourcemanager.read.model import ReadModel

log: logging.Logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.2
"""Between two rounds, for each question of the first."""
IDLE_EVERY_S: Final = 10.0
WANTED_S: Final = 10.0
"""How long after the last reader rounds still follow each other quickly."""
PATIENCE_S: Final = 0.03
DEADLINE_S: Final = 1.0
AT_ONCE: Final = 1000
"""Applications in one question: a few milliseconds of the handler thread."""
_PIECE: Final = 1000
"""Applications that are grouped between two turns for other requests: about a millisecond."""


class WaitGroup(NamedTuple):
    """The applications that wait for the same cause."""

    cause: WaitCause | None
    """None: the handler thread has not answered yet."""
    apps: int
    since_ms: int
    """When the one that has waited longest began to wait, Unix ms."""
    queues: tuple[tuple[str, int], ...]
    """How many there are in each queue, the largest number first."""

    @property
    def sentence(self) -> str:
        return self.cause.value if self.cause is not None else "not known yet"


class _WaitingOfCause(NamedTuple):
    """The applications of one cause that the same users may see."""

    sample: ApplicationReport
    apps: int
    since_ms: int


_CountsByCause = Mapping[tuple[WaitCause | None, tuple[str, str, str | None]], _WaitingOfCause]


class WaitGroups(LoopFollower):
    """`ask`: ClientRMService.get_waits_later. `is_hanging`: whether a handler is known to hang."""

    def __init__(
        self,
        model: ReadModel,
        ask: Callable[[Collection[str]], Future[list[AppWait]]],
        is_hanging: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.causes: Mapping[str, AppWait] = {}
        """By application, as of the last round; replaced by each."""
        self._model = model
        self._ask = ask
        self._is_hanging = is_hanging
        self._cells: _CountsByCause = {}
        # The publication and the causes that they are made of. By number: its reports would live on here otherwise.
        self._cells_of: tuple[int, object] = -1, None
        self._making = asyncio.Lock()  # of the cells: readers of one publication share the work
        self._now = asyncio.Event()  # begin a round at once
        self._done = asyncio.Event()  # replaced after each round, which sets it
        self._pause_s = PAUSE_S
        self._at_s = float("-inf")  # when the last round ended, by the loop's clock
        self._wanted_s = float("-inf")  # when a reader came last, by that clock

    async def fresh(self) -> None:
        """Return once `causes` are as new as rounds can make them, or after a moment."""
        loop = asyncio.get_running_loop()
        self._wanted_s = loop.time()
        self.follow()
        if self._wanted_s - self._at_s < self._pause_s or self._is_hanging():
            return
        self._now.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._done.wait()

    async def groups(self, may_view: Callable[[ApplicationReport], bool]) -> list[WaitGroup]:
        """Of the waiting applications of the publication that a user may view: the largest group first."""
        cells = await self._grouped()
        found: dict[WaitCause | None, list[_WaitingOfCause]] = {}
        for (cause, _), cell in cells.items():
            if may_view(cell.sample):
                found.setdefault(cause, []).append(cell)
        groups = [_group(cause, of_cause) for cause, of_cause in found.items()]
        return sorted(groups, key=lambda each: (each.cause is None, -each.apps, each.since_ms))

    async def _grouped(self) -> _CountsByCause:
        async with self._making:
            model, causes = self._model, self.causes
            number = model.number
            if self._cells_of[0] == number and self._cells_of[1] is causes:
                return self._cells
            cells: dict[tuple[WaitCause | None, tuple[str, str, str | None]], _WaitingOfCause] = {}
            rest = iter(model.apps_in(WAITING))
            while piece := list(islice(rest, _PIECE)):
                for app in piece:
                    wait = causes.get(app.application_id)
                    since_ms = wait.since_ms if wait is not None else app.start_ms
                    key = (wait.cause if wait is not None else None), view_key(app)
                    cell = cells.get(key)
                    if cell is None:
                        cells[key] = _WaitingOfCause(app, 1, since_ms)
                    else:
                        cells[key] = _WaitingOfCause(cell.sample, cell.apps + 1, min(cell.since_ms, since_ms))
                if len(piece) == _PIECE:
                    await asyncio.sleep(0)
            self._cells, self._cells_of = cells, (number, causes)
            return cells

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._now.clear()
            try:
                if not self._is_hanging():
                    await self._round()
            except (TimeoutError, DispatcherError):
                pass  # the handler thread hangs, or has stopped: the last answers stay
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                # Only the question was cancelled: the handler thread is stopping.
            except Exception as error:
                tell(log, logging.ERROR, "the waiting applications could not be grouped by cause", error=error)
            self._at_s, done = loop.time(), self._done
            self._done = asyncio.Event()
            done.set()
            is_wanted = self._at_s - self._wanted_s < WANTED_S
            if is_wanted:
                await asyncio.sleep(self._pause_s)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_EVERY_S):
                        await self._now.wait()

    async def _round(self) -> None:
        """Ask about all that wait now."""
        ids = [app.application_id for app in self._model.apps_in(WAITING)]
        self._pause_s = PAUSE_S * max(1, -(-len(ids) // AT_ONCE))
        found: dict[str, AppWait] = {}
        for begin in range(0, len(ids), AT_ONCE):
            asked = asyncio.wrap_future(self._ask(ids[begin : begin + AT_ONCE]))
            for wait in await asyncio.wait_for(asked, DEADLINE_S):
                found[wait.application_id] = wait
        if found != self.causes:
            self.causes = found


def _group(cause: WaitCause | None, cells: Collection[_WaitingOfCause]) -> WaitGroup:
    queues: Counter[str] = Counter()
    for cell in cells:
        queues[cell.sample.queue] += cell.apps
    return WaitGroup(cause, queues.total(), min(cell.since_ms for cell in cells), tuple(queues.most_common()))
