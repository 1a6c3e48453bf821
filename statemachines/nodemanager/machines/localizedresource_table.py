"""LocalizedResource: a file that a node fetched for containers, after Hadoop's LocalizedResource."""

from __future__ import annotations

from enum import Enum, auto

from statemachines.table import STAY, Row, from_table


class ResourceState(Enum):
    INIT = auto()
    DOWNLOADING = auto()
    LOCALIZED = auto()
    FAILED = auto()


class ResourceEventType(Enum):
    REQUEST = auto()
    LOCALIZED = auto()
    RELEASE = auto()
    LOCALIZATION_FAILED = auto()
    RECOVERED = auto()


S, E = ResourceState, ResourceEventType

_ROWS: tuple[Row[ResourceState], ...] = (
    (S.INIT, S.DOWNLOADING, E.REQUEST),
    (S.INIT, S.LOCALIZED, E.RECOVERED),
    ((S.DOWNLOADING, S.LOCALIZED), STAY, {E.REQUEST, E.RELEASE}),
    (S.DOWNLOADING, S.LOCALIZED, E.LOCALIZED),
    (S.DOWNLOADING, S.FAILED, E.LOCALIZATION_FAILED),
)
FACTORY = from_table("LocalizedResource", S, _ROWS)
