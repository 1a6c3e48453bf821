"""A queue that pauses in the window of a race."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from ..kit import TIMEOUT_S


class PausingDeque(deque[Any]):
    """Holds the producer of event -1 right before or right after its append."""

    window: str
    reached: threading.Event
    goes_on: threading.Event

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch, window: str = "before") -> type[PausingDeque]:
        """For all dispatchers that are made from now on."""
        made = type("Pausing", (cls,), {"window": window, "reached": threading.Event(), "goes_on": threading.Event()})
        monkeypatch.setattr("dispatcher.queue.inbox.deque", made)
        return made

    def append(self, entry: Any) -> None:
        event = entry[0] if isinstance(entry, tuple) else entry  # which has the time of its post with it
        is_held = getattr(event, "number", None) == -1
        if is_held and self.window == "before":
            self._pause()
        super().append(entry)
        if is_held and self.window == "after":
            self._pause()

    def _pause(self) -> None:
        self.reached.set()
        assert self.goes_on.wait(TIMEOUT_S)
