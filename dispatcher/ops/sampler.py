"""Rates and shares of the last seconds, and curves of five minutes, from samples of counters taken once a second on a
thread of its own.

No handler thread takes part: the counters are what any thread may read. One sampler serves all doors of the process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from dispatcher.ops.floods import GROWS_FROM, SAMPLE, FloodWatch, TypeKey
from dispatcher.stats import DispatcherStats
from dispatcher.supervision.health import health
from dispatcher.util.foreign import class_name, tell, type_name
from dispatcher.util.threads import try_to_start
from dispatcher.view import DispatcherView, FailureKey, dispatchers

log: logging.Logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
WINDOWS_S: Final = (1, 10, 60)
POINT_S: Final = 5.0
POINTS: Final = 60
"""Of a curve: five minutes."""
_SLACK: Final = 0.5
"""Part of a second by which a sample may be younger than a window and still count as its beginning."""


class TypeFlood(NamedTuple):
    """An event type whose queue grows."""

    per_s: float
    """Events by which it grows, a second."""
    for_s: float
    """How long it has grown."""


class _TypeCounts(NamedTuple):
    """The counters of one event type."""

    ended: float
    failed: float
    timed: float
    handling_s: float


class _CounterSample(NamedTuple):
    """The counters of one dispatcher at one moment."""

    at_s: float
    ended: int
    failed: int
    retried: int
    accepted: int
    queue_size: int
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


class Curves(NamedTuple):
    """The last five minutes of a dispatcher: a value for each `POINT_S`, oldest first; None: it is not known.

    The last value is of the seconds since the one before.
    """

    queue: list[int | None]
    """The largest number of queued events."""
    rate: list[float | None]
    """Events a second that were handled or failed."""
    failing: list[float | None]
    """Events and attempts a second that failed."""
    busy: list[float | None]
    """The part of the time, 0 to 1, in which the handler thread did not wait."""


class _TypeCounters:
    """The counters of event types at several moments, as arrays: objects would take megabytes."""

    def __init__(self) -> None:
        self._places: dict[TypeKey, int] = {}  # of each type in the arrays
        self._samples: deque[tuple[float, array[float]]] = deque(maxlen=WINDOWS_S[1] + 2)

    def add(self, now_s: float, stats: DispatcherStats) -> dict[TypeKey, int]:
        """Returns how many events of each type have ended since the sample before."""
        places = self._places
        handled, failed, handling = stats.handled_by_type, stats.failed_by_type, stats.handling_by_type
        for key in chain(handled, failed):
            places.setdefault(key, len(places))
        values = array("d")
        for key in places:
            failed_of = failed.get(key, 0)
            values.extend((handled.get(key, 0) + failed_of, failed_of, *handling.get(key, (0, 0.0))))
        before = self._samples[-1][1] if self._samples else array("d")
        self._samples.append((now_s, values))
        width = len(_TypeCounts._fields)
        since = [
            now - (before[at * width] if at * width < len(before) else 0) for at, now in enumerate(values[::width])
        ]
        return {key: int(ended) for key, ended in zip(places, since, strict=True) if ended > 0}

    def over(self, window_s: float) -> tuple[float, dict[TypeKey, tuple[_TypeCounts, _TypeCounts]]]:
        """The seconds between the first and the last sample of the window, and the counters of each type there."""
        if len(self._samples) < 2:
            return 0.0, {}
        end_s, latest = self._samples[-1]
        begin_s, first = next(each for each in self._samples if each[0] >= end_s - window_s - _SLACK)
        return end_s - begin_s, {key: (_of_type(first, at), _of_type(latest, at)) for key, at in self._places.items()}


def _of_type(values: array[float], place: int) -> _TypeCounts:
    width = len(_TypeCounts._fields)
    found = values[place * width : (place + 1) * width]
    return _TypeCounts(*found) if found else _TypeCounts(0, 0, 0, 0.0)


class _SampleHistory:
    """The samples of one dispatcher. The sampler's lock guards it."""

    def __init__(self) -> None:
        self.samples: deque[_CounterSample] = deque(maxlen=int(POINTS * POINT_S / EVERY_S) + 2)
        self.types: _TypeCounters = _TypeCounters()
        self.floods: FloodWatch = FloodWatch()
        self.failures: deque[tuple[float, dict[FailureKey, int]]] = deque(maxlen=WINDOWS_S[1] + 2)


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
        self._histories: weakref.WeakKeyDictionary[DispatcherView, _SampleHistory] = weakref.WeakKeyDictionary()

    def sample(self) -> None:
        """Read the counters of all dispatchers."""
        for view in self._views():
            self._sample(view)

    def _sample(self, view: DispatcherView) -> None:
        stats, failures = view.stats(), view.failure_counts()
        now_s = self._clock_s()
        latency = stats.mailbox_latency
        sample = _CounterSample(
            at_s=now_s,
            ended=stats.handled + stats.failed,
            failed=stats.failed,
            retried=sum(stats.retried_by_type.values()),
            accepted=stats.accepted,
            queue_size=stats.queue_size,
            idle_s=stats.idle_s,
            latency_ns=latency.total_ns if latency is not None else 0,
            latencies=sum(latency.counts) if latency is not None else 0,
        )
        with self._lock:
            history = self._histories.get(view)
            if history is None:
                history = self._histories[view] = _SampleHistory()
            posted = sample.accepted - (history.samples[-1].accepted if history.samples else 0)
        newest = _newest(view, posted, sample.queue_size)  # outside the lock: it looks at foreign events
        with self._lock:
            history.samples.append(sample)
            ended = history.types.add(now_s, stats)
            history.floods.note(now_s, sample.queue_size, posted, newest, ended)
            if history.failures and history.failures[-1][1] == failures:
                failures = history.failures[-1][1]  # kept once, not each second
            history.failures.append((now_s, failures))

    def curves(self, view: DispatcherView) -> Curves:
        """The last five minutes of a dispatcher."""
        samples = self._samples(view)
        curves = Curves([], [], [], [])
        if not samples:
            return curves
        last = int(samples[-1].at_s // POINT_S)
        at = bisect_left(samples, (last - POINTS + 1) * POINT_S, key=_at_s)
        for point in range(last - POINTS + 1, last + 1):
            end = bisect_left(samples, (point + 1) * POINT_S, lo=at, key=_at_s)
            _add_point(curves, samples[at:end], samples[at - 1] if at else None)
            at = end
        return curves

    def floods(self, view: DispatcherView) -> dict[TypeKey, TypeFlood]:
        """The types whose queue grows."""
        now_s = self._clock_s()
        with self._lock:
            history = self._histories.get(view)
            found = history.floods.floods.copy() if history is not None else {}
        return {key: TypeFlood(flood.per_s, max(0.0, now_s - flood.since_s)) for key, flood in found.items()}

    def failing_rates(self, view: DispatcherView) -> Mapping[tuple[str, str, str], float]:
        """Failures and attempts a second over the last 10 seconds, of each group that failed then."""
        with self._lock:
            history = self._histories.get(view)
            samples = list(history.failures) if history is not None else []
        if len(samples) < 2:
            return {}
        end_s, latest = samples[-1]
        begin_s, first = next(each for each in samples if each[0] >= end_s - WINDOWS_S[1] - _SLACK)
        if end_s <= begin_s:
            return {}
        grown = {key: count - min(count, first.get(key, 0)) for key, count in latest.items()}
        return {key: round(count / (end_s - begin_s), 3) for key, count in grown.items() if count}

    def rates(self, view: DispatcherView) -> dict[str, float]:
        """Events a second over the last 1, 10 and 60 seconds, by `1s`, `10s` and `60s`; 0 in the first second."""
        return self._rates(view, lambda sample: sample.ended)

    def failure_rates(self, view: DispatcherView) -> dict[str, float]:
        """Failed events a second over the last 1, 10 and 60 seconds, by `1s`, `10s` and `60s`."""
        return self._rates(view, lambda sample: sample.failed)

    def _rates(self, view: DispatcherView, count: Callable[[_CounterSample], int]) -> dict[str, float]:
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
        return round(_share(span[1].idle_s - span[0].idle_s, span[1].at_s - span[0].at_s), 4)

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
            took_s, types = history.types.over(WINDOWS_S[1]) if history is not None else (0.0, {})
        return {key: _type_rate(*counters, took_s) for key, counters in types.items()} if took_s > 0 else {}

    def _span(
        self, view: DispatcherView, window_s: float, *, from_zero: bool = False
    ) -> tuple[_CounterSample, _CounterSample] | None:
        """The first and the last sample of a window."""
        samples = self._samples(view)
        if from_zero and len(samples) < WINDOWS_S[-1]:
            samples = [_CounterSample(float("-inf"), 0, 0, 0, 0, 0, 0.0, 0, 0), *samples]
            return (samples[0], samples[-1]) if len(samples) > 1 else None
        if len(samples) < 2:
            return None
        last = samples[-1]
        at = bisect_left(samples, last.at_s - window_s - _SLACK, key=_at_s)
        first = samples[min(at, len(samples) - 2)]
        return (first, last) if last.at_s > first.at_s else None

    def _samples(self, view: DispatcherView) -> list[_CounterSample]:
        with self._lock:
            history = self._histories.get(view)
            return list(history.samples) if history is not None else []


def _at_s(sample: _CounterSample) -> float:
    return sample.at_s


def _newest(view: DispatcherView, posted: int, queue_size: int) -> dict[TypeKey, int]:
    """A sample of the events posted in the last second that are still queued, by type, if the queue is long."""
    last = min(posted, queue_size)
    if queue_size < GROWS_FROM or last <= 0:
        return {}
    found: Counter[TypeKey] = Counter()
    for event_type, count in view.newest_queued(last, SAMPLE).counts.items():
        found[class_name(event_type), type_name(event_type)] += count
    return found


def _add_point(curves: Curves, samples: Sequence[_CounterSample], before: _CounterSample | None) -> None:
    """Add the values of the samples of one point. `before`: the last sample of the points before."""
    curves.queue.append(max((sample.queue_size for sample in samples), default=None))
    first = before if before is not None else samples[0] if samples else None
    took_s = samples[-1].at_s - first.at_s if samples and first is not None else 0.0
    if first is None or not took_s:
        for curve in (curves.rate, curves.failing, curves.busy):
            curve.append(None)
        return
    last = samples[-1]
    failing = last.failed + last.retried - first.failed - first.retried
    curves.rate.append(round(max(0, last.ended - first.ended) / took_s, 3))
    curves.failing.append(round(max(0, failing) / took_s, 3))
    curves.busy.append(round(1.0 - _share(last.idle_s - first.idle_s, took_s), 4))


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))


def _per_second(count: int, span: tuple[_CounterSample, _CounterSample]) -> float:
    return round(max(0, count) / (span[1].at_s - span[0].at_s), 3)


def _type_rate(first: _TypeCounts, now: _TypeCounts, took_s: float) -> TypeRate:
    ended, timed = max(0, now.ended - first.ended), now.timed - first.timed
    failed = max(0, now.failed - first.failed)
    if timed > 0:
        mean_s = (now.handling_s - first.handling_s) / timed
    else:  # none of them was timed: as long as those before
        mean_s = now.handling_s / now.timed if now.timed else 0.0
    share = round(_share(ended * mean_s, took_s), 4)
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
                if try_to_start(thread):  # otherwise the next user tries again, as after a signal handler's exception
                    self._thread = thread
            return self._sampler

    def release(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
        self._wake.set()

    def is_running(self) -> bool:
        return self._thread is not None

    def _run(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return  # a signal handler's exception ended its start after the system had created it
        sampler, wake = self._sampler, self._wake
        while True:
            try:
                sampler.sample()
                health.glance()
            except Exception as error:
                tell(log, logging.ERROR, "a look at the dispatchers failed", error=error)
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
