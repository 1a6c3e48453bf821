"""What all events of a resource manager have in common.

An event's `entity` is the id of the entity that it is for: the application of an RMAppEvent, the container of an
RMContainerEvent. The journal notes when each event was handled, so these events carry no times of their own.
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
        self.timestamp = -1.0  # not noted, as in YARN's AbstractEvent
        self.entity = entity
