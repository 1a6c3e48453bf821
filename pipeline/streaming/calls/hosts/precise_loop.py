"""An asyncio loop with precise timers: epoll rounds waits up to whole milliseconds, select does not."""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Iterable
from typing import Final

_COARSE_FROM_S: Final = 0.1
"""Longer waits may end a millisecond late."""
_FD_SETSIZE: Final = 1024
"""select accepts only file descriptors below this."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop for I/O on any number of files. A wait of 10 ms takes 10.1 ms on it, not up to 11."""
    if hasattr(selectors, "EpollSelector"):
        return asyncio.SelectorEventLoop(_PreciseSelector())
    return asyncio.new_event_loop()


if hasattr(selectors, "EpollSelector"):

    class _PreciseSelector(selectors.EpollSelector):
        """Waits with select for the epoll's own file descriptor."""

        def select(self, timeout: float | None = None) -> Iterable[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
            fd = self.fileno()
            if timeout is not None and 0 < timeout < _COARSE_FROM_S and fd < _FD_SETSIZE:
                select.select((fd,), (), (), timeout)
                timeout = 0
            return super().select(timeout)
