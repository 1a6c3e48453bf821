"""What the endpoints of one ops API share."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dispatcher.metrics.transition_ring import ring
from dispatcher.ops.change_log import ChangesMade
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.letter_folders import LetterFolders
from dispatcher.ops.sampler import Sampler, shared_sampler
from dispatcher.ops.sight import WHOLE, MaySeeOf, Sight
from dispatcher.service import ServiceState
from dispatcher.view import DispatcherView, dispatchers
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.waiting import Kept, Workers

if TYPE_CHECKING:
    from starlette.requests import Request

_STACK_KEPT_S: Final = 0.05


class LogLevels:
    """Levels of loggers that go back by themselves. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _changed; logging's own lock may be taken under it
        # By logger: the level before the first change, and the timer that restores it; guarded by _lock.
        self._changed: dict[str, tuple[int, threading.Timer]] = {}

    def change(self, name: str, level: str, for_s: float) -> str:
        """Set a level for `for_s` seconds; returns the level before. A later change of the logger takes its place."""
        logger = logging.getLogger(name)
        timer = threading.Timer(for_s, lambda: self._restore(name, timer))
        timer.daemon = True
        timer.name = "ops-log-level"
        with self._lock:
            timer.start()  # first: without it the level would stay; it cannot restore before _lock is free
            before, earlier = self._changed.get(name, (logger.level, None))
            if earlier is not None:
                earlier.cancel()
            self._changed[name] = before, timer
            logger.setLevel(level)
        return logging.getLevelName(before)

    def restore_all(self) -> None:
        """Undo every change now."""
        with self._lock:
            changed = dict(self._changed)
        for name, (_, timer) in changed.items():
            timer.cancel()
            self._restore(name, timer)

    def _restore(self, name: str, timer: threading.Timer) -> None:
        with self._lock:
            before, latest = self._changed.get(name, (0, None))
            if latest is timer:
                del self._changed[name]
                logging.getLogger(name).setLevel(before)


class Ops:
    """What the endpoints of one app share. One loop's thread, but for `close`."""

    def __init__(self, config: OpsConfig, name: str, stopping: asyncio.Event, may_see: MaySeeOf | None = None) -> None:
        self.config = config
        self._may_see = may_see
        self.name = name
        self.stopping = stopping
        """Ends the streams of an app that another server serves."""
        self.workers: Workers = Workers()
        self.scans: Workers = Workers(most=1)
        self.numbers: Kept = Kept(1.0)
        self.running: Kept = Kept(_STACK_KEPT_S)
        self.threads: Kept = Kept(1.0)
        self.log_levels: LogLevels = LogLevels()
        self.letters: LetterFolders = LetterFolders()
        self.changes: ChangesMade = ChangesMade()
        if config.transitions_kept > ring.most:
            ring.resize(config.transitions_kept)
        elif not config.transitions_kept:
            ring.resize(0)
        shared_sampler.use(self)

    @property
    def sampler(self) -> Sampler:
        return shared_sampler.use(self)  # after a fork, its thread has to be started again

    async def sight(self, request: Request) -> Sight:
        """What the user of the request sees."""
        return WHOLE if self._may_see is None else Sight(await self._may_see(request))

    def views(self) -> Sequence[DispatcherView]:
        return dispatchers()

    def view(self, request: Request) -> DispatcherView:
        """The dispatcher that the path names, as `named`."""
        return self.named(request.path_params["name"])

    def named(self, name: str) -> DispatcherView:
        """The newest dispatcher of that name, if possible one that runs. Raises Refusal (404)."""
        views = dispatchers()
        found = [view for view in reversed(views) if view.name == name]
        if not found:
            known = ", ".join(dict.fromkeys(view.name for view in views)) or "none"
            raise Refusal(404, f"no dispatcher {name!r} in this process; known: {known}")
        return next((view for view in found if view.state is ServiceState.STARTED), found[0])

    def close(self) -> None:
        """Restore the levels of loggers, and let the sampler end. Any thread."""
        self.log_levels.restore_all()
        shared_sampler.release(self)
