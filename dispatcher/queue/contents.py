"""What is queued, by event type and by entity."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice, repeat
from math import gcd
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from dispatcher.queue.entry import Entry, InQueue, event_of, is_stamped
from dispatcher.util.foreign import entity_of, is_member, reraise_interrupt, type_of
from dispatcher.util.registry import copy_of

K = TypeVar("K")

SAMPLE: Final = 50_000
"""A queue with more events is counted by a sample of this size."""
LEFT_SAMPLE: Final = 10_000
"""The sample of a queue that a stop has left, if that has more than SAMPLE events."""
_IN_STRETCH: Final = 20
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class QueueCounts(Generic[K]):
    """How many queued events there are of each kind; `approximate`: scaled from a sample of a long queue."""

    counts: dict[K, int]
    approximate: bool


class QueueContents:
    """Counts the entries of one queue by event type and by entity. Any thread; takes no lock.

    A long queue is estimated from a sample: counting a million events would take 0.2 s and slow the handler thread. A
    sample of 50,000 is 20 entries from each of 2,500 equal stretches of the queue, at a random place in the stretch and
    at equal distances. Every 20th entry of the queue would not do: if two types alternate, all of those are of one
    type.
    """

    def __init__(self, entries: deque[Any], *, are_stamped: bool = False) -> None:
        """`are_stamped`: all posts note the time."""
        self._entries = entries  # any thread appends and takes
        self._are_stamped = are_stamped  # never changes

    def by_type(self, sample: int = SAMPLE) -> tuple[list[tuple[Enum, int]], bool]:
        """Events that wait, by type, except those without an Enum type; and whether they were sampled.

        A list, because hashing an Enum member runs Python code, which may be foreign.
        """
        entries, queued = self._sampled(sample)
        found = _by_type(entries, are_stamped=self._are_stamped)
        counted = [(event_type, _scaled(count, queued, len(entries))) for event_type, count in found]
        return [(event_type, count) for event_type, count in counted if is_member(event_type)], queued > len(entries)

    def newest(self, last: int, most: int) -> list[tuple[Enum, int]]:
        """The `last` events posted that still wait, by type, or `most` random ones of them if that is less."""
        places = random.sample(range(1, last + 1), min(last, most))
        found: list[Any] = []
        for place in places:
            with contextlib.suppress(IndexError):  # it has left the queue meanwhile
                found.append(self._entries[-place])
        counted = _by_type(found, are_stamped=self._are_stamped)
        return [(event_type, count) for event_type, count in counted if is_member(event_type)]

    def by_entity(self, limit: int, sample: int = SAMPLE) -> QueueCounts[str]:
        """Events that wait, by their `entity`: the `limit` entities with most events, largest first."""
        entries, queued = self._sampled(sample)
        entities = Counter(entity_of(event_of(entry)) for entry in entries)
        del entities[None]
        largest = sorted(entities.items(), key=lambda item: (-item[1], item[0] or ""))[:limit]
        counts = {entity: _scaled(count, queued, len(entries)) for entity, count in largest if entity is not None}
        return QueueCounts(counts, approximate=queued > len(entries))

    def _sampled(self, sample: int) -> tuple[list[Any], int]:
        """Entries spread over the queue, all of one with up to `sample`, and how many are queued."""
        queued = len(self._entries)
        if queued <= sample:
            entries = copy_of(self._entries)
            return entries, len(entries)
        starts, stops, step = _places(queued, sample)

        def take() -> list[Any]:
            # One call that runs in C, during which the queue does not change if there is a GIL. It looks at each entry
            # once, as a copy would, but neither allocates nor comes back to entries that have left the processor's
            # cache.
            return list(chain.from_iterable(map(islice, repeat(iter(self._entries)), starts, stops, repeat(step))))

        for _ in range(_TRIES):
            try:
                return take(), queued
            except RecursionError:  # a RuntimeError as well; to try again would not help
                raise
            except RuntimeError:  # without a GIL the queue may change meanwhile
                continue
        return self._picked(queued, sample), queued

    def _picked(self, queued: int, sample: int) -> list[Any]:
        """Entries of random places, each read by itself, as far as they are still there."""
        found: list[Any] = []
        for place in random.sample(range(queued), min(sample, LEFT_SAMPLE)):
            with contextlib.suppress(IndexError):
                found.append(self._entries[place])
        return found


def count_types(entries: list[Any]) -> tuple[list[tuple[Any, int]], bool]:
    """Entries that were taken from a queue, by their events' type; and whether they were sampled."""
    # Entries that nothing has read for long are far from the processor, so the sample is smaller than a live queue's.
    sample = random.sample(entries, LEFT_SAMPLE) if len(entries) > SAMPLE else entries
    found = _by_type(sample, are_stamped=any(map(is_stamped, sample[:1])))
    return [
        (event_type, _scaled(count, len(entries), len(sample))) for event_type, count in found
    ], sample is not entries


def _by_type(entries: list[Any], *, are_stamped: bool) -> list[tuple[Any, int]]:
    counts: Counter[int] = Counter()  # by identity
    types: dict[int, Any] = {}
    _count([event_of(entry) for entry in entries] if are_stamped else entries, counts, types)
    if counts.pop(id(InQueue.ENTRY), 0):
        _count([event_of(entry) for entry in entries if type(entry) is Entry], counts, types)
    return [(types[key], count) for key, count in counts.items()]


def _places(queued: int, sample: int) -> tuple[list[int], list[int], int]:
    """Where to take entries from a queue: from `start` to `stop` of each stretch, counted from the `stop` before; the
    distance of two entries."""
    step = queued // sample
    while gcd(step, 30) > 1:  # types that take turns do so by 2, 3, 4, 5, ...
        step -= 1
    span = (_IN_STRETCH - 1) * step + 1
    stretches = sample // _IN_STRETCH
    starts, upto = [], 0
    for number in range(stretches):
        begin, end = number * queued // stretches, (number + 1) * queued // stretches
        place = begin + int(random.random() * (end - begin - span + 1))
        starts.append(place - upto)
        upto = place + span
    return starts, [start + span for start in starts], step


def sums(counted: Iterable[tuple[Enum, int]]) -> dict[Enum, int]:
    """The sums by type, without the types whose `__hash__` or `__eq__` raises."""
    sums: dict[Enum, int] = {}
    for event_type, count in counted:
        with contextlib.suppress(Exception):
            sums[event_type] = sums.get(event_type, 0) + count
    return sums


def _count(events: list[Any], counts: Counter[int], types: dict[int, Any]) -> None:
    """Count the events' types by their identity; `types` keeps each."""
    try:
        found = list(map(attrgetter("type"), events))  # in C, unless `type` is a foreign property
    except BaseException as error:
        reraise_interrupt(error)
        found = [type_of(event) for event in events]
    keys = list(map(id, found))
    counts.update(keys)
    types.update(zip(keys, found, strict=True))


def _scaled(count: int, queued: int, counted: int) -> int:
    return count if queued == counted else round(count * queued / counted)
