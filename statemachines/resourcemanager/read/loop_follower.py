"""A task in the background of an asyncio loop. The loop's thread."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress


class LoopFollower(ABC):
    """Runs `_follow` on a loop, from `follow` until `close`."""

    def __init__(self) -> None:
        self._following: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Begin, on the running loop; without effect if it has begun."""
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """End the task, and return once it has ended."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    @abstractmethod
    async def _follow(self) -> None: ...


def is_cancelled() -> bool:
    """Whether the running task is cancelled itself, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
