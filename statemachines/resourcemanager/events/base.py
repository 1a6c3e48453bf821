"""The base of the resource manager's events.

`entity` is the id of the addressed entity: the application of an RMAppEvent, the container of an RMContainerEvent. The
journal records when an event was handled, so events have no timestamps.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from dispatcher.event import Event


class RMEvent(Event[Any]):
    """An event for one entity."""

    __slots__ = ("entity",)

    entity: str

    def __init__(self, type: Enum, entity: str) -> None:
        self.type = type
        self.timestamp = -1.0  # none, as in YARN's AbstractEvent
        self.entity = entity
