"""Stream elements: the records that flow between operators, and the watermarks between them.

Elements are immutable: a queue, a snapshot and a downstream operator may share one, in any thread.
They pickle, because snapshots store them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, init=False)
class StreamRecord(Generic[T_co]):
    """A value and its event time in milliseconds, which is None where the stream has no event time."""

    value: T_co
    timestamp_ms: int | None

    def __init__(self, value: T_co, timestamp_ms: int | None = None) -> None:
        # Takes two thirds of the time of a frozen dataclass's __init__; each processed record makes two.
        _set_value(self, value)
        _set_timestamp_ms(self, timestamp_ms)


_set_value = vars(StreamRecord)["value"].__set__
_set_timestamp_ms = vars(StreamRecord)["timestamp_ms"].__set__


@dataclass(frozen=True, slots=True)
class Watermark:
    """Declares that no record follows with an event time of `timestamp_ms` (milliseconds) or less."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """Stands for a value that could not be made: its record fails with `error`, and no call is made for it.

    `value`: what is known of it, which becomes the record's value in errors.
    """

    value: object
    error: Exception


StreamElement: TypeAlias = StreamRecord[T] | Watermark
