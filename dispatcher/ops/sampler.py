"""Rates and shares of the last seconds, from samples of counters taken once a second on a thread of its own.

No handler thread takes part: the counters are what any thread may read. One sampler serves all doors of the process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from dispatcher.util.foreign import tell
from dispatcher.util.threads import try_to_start
from dispatcher.view import DispatcherView, dispatchers

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
WINDOWS_S: Final = (1, 10, 60)
_SLACK: Final = 0.5
"""Part of a second by which a sample may be younger than a window and still count as its beginning."""

TypeKey = tuple[str, str]


class _OfType(NamedTuple):
    """The counters of one event type."""

    ended: int
    failed: int
    timed: int
    handling_s: float


class _Sample(NamedTuple):
    """The counters of one dispatcher at one moment."""

    at_s: float
    ended: int
    failed: int
    idle_s: float
    latency_ns: int
    latencies: int


class TypeRate(NamedTuple):
    """One event type over the last 10 seconds."""

    rate: float
    """Events a second that were handled or failed."""
    failed_rate: float
    """Events a second that failed."""
    share: float
    """Of the handler thread's time, 0 to 1; estimated from the events that were timed."""


class _History:
    """The samples of one dispatcher. The sampler's lock guards it."""

    def __init__(self) -> None:
        self.samples: deque[_Sample] = deque(maxlen=WINDOWS_S[-1] + 2)
        self.types: deque[tuple[float, dict[TypeKey, _OfType]]] = deque(maxlen=WINDOWS_S[1] + 2)


class Sampler:
    """Samples every dispatcher of the process. Any thread."""

    def __init__(
        self,
        views: Callable[[], Sequence[DispatcherView]] = dispatchers,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._views = views
        self._clock_s = clock_s
        self._lock = threading.Lock()  # leaf lock
        # Guarded by _lock, also what it holds.
        self._histories: weakref.WeakKeyDictionary[DispatcherView, _History] = weakref.WeakKeyDictionary()

    def sample(self) -> None:
        """Read the counters of all dispatchers."""
        for view in self._views():
            stats, types = view.stats(), view.types()
            now_s = self._clock_s()
            latency = stats.mailbox_latency
            sample = _Sample(
                now_s,
                stats.handled + stats.failed,
                stats.failed,
                stats.idle_s,
                latency.total_ns if latency is not None else 0,
                sum(latency.counts) if latency is not None else 0,
            )
            by_type = {
                (each.event_class, each.event_type): _OfType(
                    each.handled + each.failed, each.failed, each.timed, each.handling_s
                )
                for each in types
            }
            with self._lock:
                history = self._histories.get(view)
                if history is None:
                    history = self._histories[view] = _History()
                history.samples.append(sample)
                history.types.append((now_s, by_type))

    def rates(self, view: DispatcherView) -> dict[str, float]:
        """Events a second over the last 1, 10 and 60 seconds, by `1s`, `10s` and `60s`; 0 in the first second."""
        return self._rates(view, lambda sample: sample.ended)

    def failure_rates(self, view: DispatcherView) -> dict[str, float]:
        """As `rates`, of the events that failed."""
        return self._rates(view, lambda sample: sample.failed)

    def _rates(self, view: DispatcherView, count: Callable[[_Sample], int]) -> dict[str, float]:
        spans = {f"{window_s}s": self._span(view, window_s) for window_s in WINDOWS_S}
        return {
            window: 0.0 if span is None else _per_second(count(span[1]) - count(span[0]), span)
            for window, span in spans.items()
        }

    def idle_share(self, view: DispatcherView) -> float | None:
        """The part of the last 10 seconds, 0 to 1, in which the handler thread waited; None: too early to tell."""
        span = self._span(view, 10)
        if span is None:
            return None
        return round(min(1.0, max(0.0, (span[1].idle_s - span[0].idle_s) / (span[1].at_s - span[0].at_s))), 4)

    def latency_s(self, view: DispatcherView) -> float | None:
        """Mean time of a mail in the mailbox over the last minute, in seconds; None: none was measured."""
        span = self._span(view, 60, from_zero=True)
        if span is None or span[1].latencies <= span[0].latencies:
            return None
        return (span[1].latency_ns - span[0].latency_ns) / (span[1].latencies - span[0].latencies) / 1e9

    def type_rates(self, view: DispatcherView) -> dict[TypeKey, TypeRate]:
        """Of each event type over the last 10 seconds; empty: too early to tell."""
        with self._lock:
            history = self._histories.get(view)
            samples = list(history.types) if history is not None else []
        if len(samples) < 2:
            return {}
        end_s, latest = samples[-1]
        begin_s, first = next(each for each in samples if each[0] >= end_s - 10 - _SLACK)
        if end_s <= begin_s:
            return {}
        took_s = end_s - begin_s
        return {key: _type_rate(first.get(key, _OfType(0, 0, 0, 0.0)), now, took_s) for key, now in latest.items()}

    def _span(
        self, view: DispatcherView, window_s: float, *, from_zero: bool = False
    ) -> tuple[_Sample, _Sample] | None:
        """The first and the last sample of a window."""
        with self._lock:
            history = self._histories.get(view)
            samples = list(history.samples) if history is not None else []
        if from_zero and len(samples) < WINDOWS_S[-1]:
            samples = [_Sample(float("-inf"), 0, 0, 0.0, 0, 0), *samples]
            return (samples[0], samples[-1]) if len(samples) > 1 else None
        if len(samples) < 2:
            return None
        last = samples[-1]
        begin = last.at_s - window_s - _SLACK
        first = next((each for each in islice(samples, len(samples) - 1) if each.at_s >= begin), samples[-2])
        return (first, last) if last.at_s > first.at_s else None


def _per_second(count: int, span: tuple[_Sample, _Sample]) -> float:
    return round(max(0, count) / (span[1].at_s - span[0].at_s), 3)


def _type_rate(first: _OfType, now: _OfType, took_s: float) -> TypeRate:
    ended, timed = max(0, now.ended - first.ended), now.timed - first.timed
    failed = max(0, now.failed - first.failed)
    if timed > 0:
        mean_s = (now.handling_s - first.handling_s) / timed
    else:  # none of them was timed: as long as those before
        mean_s = now.handling_s / now.timed if now.timed else 0.0
    share = round(min(1.0, max(0.0, ended * mean_s / took_s)), 4)
    return TypeRate(round(ended / took_s, 3), round(failed / took_s, 3), share)


class SharedSampler:
    """The sampler of the process and its thread, which runs while it has users. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below; a leaf lock
        self._users: weakref.WeakSet[object] = weakref.WeakSet()  # guarded by _lock
        self._sampler = Sampler()  # guarded by _lock; replaced in a forked child
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._wake = threading.Event()  # replaced in a forked child; any thread sets it

    def use(self, user: object) -> Sampler:
        """The sampler, which runs at least until `user` is gone or calls `release`."""
        with self._lock:
            self._users.add(user)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ops-sampler", daemon=True)
                if try_to_start(thread):  # otherwise the next user tries again
                    self._thread = thread
            return self._sampler

    def release(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
        self._wake.set()

    def is_running(self) -> bool:
        return self._thread is not None

    def _run(self) -> None:
        sampler, wake = self._sampler, self._wake
        while True:
            try:
                sampler.sample()
            except Exception as error:
                tell(log, logging.ERROR, "a sample of the dispatchers failed", error=error)
            wake.wait(EVERY_S)
            with self._lock:
                wake.clear()
                if not self._users:
                    self._thread = None
                    return

    def after_fork(self) -> None:
        """In a forked child, which has no such thread: the next use starts one."""
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._sampler, self._thread = Sampler(), None


shared_sampler: Final = SharedSampler()
os.register_at_fork(after_in_child=shared_sampler.after_fork)
