"""What the lanes of `async def` handlers have in hand: what is in flight, and what waits behind which key."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from dispatcher.util.foreign import class_name, cut_text, entity_of, id_text, plain_text, type_name, type_of

if TYPE_CHECKING:
    from dispatcher.dispatching.lanes import Call, Lane

_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class LaneKey:
    """The events of one key that a lane has in hand."""

    key: str | None
    """None: the events have no key, and run one after another."""
    in_flight: int
    """Events whose coroutines have begun."""
    waiting: int
    event_class: str
    """Of the event in flight for longest, else of the first that waits, as the next two."""
    event_type: str
    entity: str | None
    running_s: float | None
    """How long that event has been in flight."""


@dataclass(frozen=True, slots=True)
class LaneNow:
    """The events of one `async def` handler that it has in hand."""

    handler: str
    capacity: int
    """Maximum events in flight."""
    in_flight: int
    waiting: int
    """Events that wait for their key, or for one of those in flight to end."""
    is_full: bool
    """The dispatcher takes no more events until one of this lane begins."""
    keys: list[LaneKey]
    """Those with the most events that wait, first."""


def lane_now(lane: Lane, limit: int) -> LaneNow:
    """What a lane has in hand, with its `limit` keys with the most events that wait. Any thread; takes no lock."""
    handler = lane.handler
    calls = [call for call in lane.calls.copy() if not call.ended_ns]
    of_keys: dict[int, list[Call]] = {}
    for call in calls:  # by line: the keys' `__hash__` and `__eq__` are foreign
        of_keys.setdefault(id(call.line), []).append(call)
    in_flight = sum(1 for call in calls if call.started_ns)
    largest = sorted(of_keys.values(), key=_rank)[:limit]
    function: Any = handler.function
    return LaneNow(
        handler=cut_text(lambda: plain_text(getattr(function, "__qualname__", None) or repr(function))),
        capacity=handler.capacity,
        in_flight=in_flight,
        waiting=len(calls) - in_flight,
        is_full=lane.is_full(),
        keys=[_key_now(calls_of_key) for calls_of_key in largest],
    )


def _rank(calls: list[Call]) -> tuple[int, int]:
    """The most events that wait first; of equal ones, the one whose event is in flight for longest."""
    begun = [call.started_ns for call in calls if call.started_ns]
    return len(begun) - len(calls), min(begun, default=perf_counter_ns())


def _key_now(calls: list[Call]) -> LaneKey:
    begun = [call for call in calls if call.started_ns]
    first = min(begun, key=lambda call: call.started_ns, default=calls[0])
    event_type = type_of(first.event)
    return LaneKey(
        key=None if first.key is None else cut_text(lambda: id_text(first.key), _LONGEST_KEY),
        in_flight=len(begun),
        waiting=len(calls) - len(begun),
        event_class=class_name(event_type),
        event_type=type_name(event_type),
        entity=entity_of(first.event),
        running_s=(perf_counter_ns() - first.started_ns) / 1e9 if first.started_ns else None,
    )
