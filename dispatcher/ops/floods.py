"""Which event types flood a dispatcher: those whose queue grows.

Each second, a sample of the newest queued events gives an estimate of how many events of each type were accepted, so
that posts don't have to count them. The dispatcher already counts the events that have ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

TypeKey: TypeAlias = tuple[str, str]

GROWS_FROM: Final = 100
"""Shorter queues are not examined."""
SAMPLE: Final = 50
"""Queued events examined each second."""
_WINDOW: Final = 11
"""Samples: ten seconds, and their beginning."""
_LEAST_WINDOW: Final = 6
_QUICK: Final = 1.5
"""Growth by this factor within the window is a flood. Slower growth has to last for the long window, because the length
of every busy queue varies."""
_LONG_WINDOW: Final = 61
_LEAST_LONG_WINDOW: Final = 31
_LEAST_PER_S: Final = 1.0
_LEAST_SHARE: Final = 0.1
"""A type that causes a smaller part of the queue's growth is not shown."""
_FORGOTTEN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Flood:
    """A type whose queue grows."""

    since_s: float
    """By the sampler's clock."""
    per_s: float
    """Events by which the queue of the type grows, a second."""
    seen_s: float
    """When it was last seen to grow, by the sampler's clock."""


class FloodWatch:
    """The floods of one dispatcher. The caller locks."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[float, int, Mapping[TypeKey, float]]] = deque(maxlen=_WINDOW)
        self._sizes: deque[int] = deque(maxlen=_LONG_WINDOW)
        self.floods: dict[TypeKey, Flood] = {}

    def note(
        self, now_s: float, size: int, posted: int, newest: Mapping[TypeKey, int], ended: Mapping[TypeKey, int]
    ) -> None:
        """Add the numbers of the last second, and update `floods`.

        `size`: events queued now. `posted`: events accepted. `newest`: by type, a sample of these. `ended`: by type,
        events handled or failed.
        """
        if size < GROWS_FROM:
            self._ticks.clear()
            self._sizes.clear()
        else:
            sampled = sum(newest.values())
            grown = (
                Counter[TypeKey]()
                if not sampled
                else Counter({key: count * posted / sampled for key, count in newest.items()})
            )
            grown.subtract(ended)
            self._ticks.append((now_s, size, grown))
            self._sizes.append(size)
            self._find(now_s)
        for key, flood in list(self.floods.items()):
            if now_s - flood.seen_s > _FORGOTTEN_AFTER_S:
                del self.floods[key]

    def _find(self, now_s: float) -> None:
        ticks, sizes = list(self._ticks), list(self._sizes)
        if len(ticks) < _LEAST_WINDOW or not _grows([size for _, size, _ in ticks]):
            return
        is_quick = sizes[-1] >= _QUICK * ticks[0][1]
        is_lasting = len(sizes) >= _LEAST_LONG_WINDOW and _grows(sizes)
        if not (is_quick or is_lasting or self.floods):  # one that was found goes on while it grows at all
            return
        begin_s, begin_size, _ = ticks[0]
        took_s = now_s - begin_s
        grown: Counter[TypeKey] = Counter()
        for _, _, each in ticks[1:]:
            grown.update(each)
        least = max(_LEAST_PER_S, _LEAST_SHARE * (ticks[-1][1] - begin_size) / took_s)
        for key, events in grown.items():
            if events / took_s >= least:
                before = self.floods.get(key)
                self.floods[key] = Flood(before.since_s if before is not None else begin_s, events / took_s, now_s)


def _grows(sizes: Sequence[int]) -> bool:
    """Whether each third has more events at all times than the third before, so that ups and downs do not count."""
    third = len(sizes) // 3
    first, second, last = sizes[:third], sizes[third:-third], sizes[-third:]
    return max(first) < min(second) and max(second) < min(last)
