"""Posting at times of a ManualClock, for the InlineDispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.errors import InvalidValueError
from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.mailbox.time_service import TimerFuture
from dispatcher.queue.due import checked_key, duration_ns, is_event_not_factory, rhythm_ns, unix_ns


class InlineScheduled:
    """An event posted at a time of the clock, or repeatedly. Like what an AsyncDispatcher returns."""

    def __init__(self, clock: ManualClock, due_ms: int, period_ms: int, post: Callable[[], Any]) -> None:
        """`period_ms`: 0, if it fires once. `post` is called on the thread that advances the clock, as is due."""
        self._post = post
        self._period_ms = period_ms
        self._due_ms: int | None = due_ms  # None: never again
        self._timer: TimerFuture = (
            clock.schedule_at_fixed_rate(self._fire, due_ms - clock.current_processing_time(), period_ms)
            if period_ms
            else clock.register_timer(due_ms, self._fire)
        )

    def cancel(self) -> bool:
        """Stop it from firing, or return False if it has fired for the last time."""
        if not self._timer.cancel():
            return False
        self._due_ms = None
        return True

    @property
    def due(self) -> float | None:
        """Return when it's due next, in Unix seconds of the clock, or None if never again."""
        return None if self._due_ms is None else self._due_ms / 1000

    def is_periodic(self) -> bool:
        return self._period_ms > 0

    def is_done(self) -> bool:
        """Whether it won't fire again: it has fired, or was cancelled."""
        return self._due_ms is None

    def _fire(self, due_ms: int) -> None:
        self._due_ms = due_ms + self._period_ms if self._period_ms else None
        self._post()


class InlineSchedule:
    """The events of one InlineDispatcher that are posted later. Times are whole milliseconds, rounded up."""

    def __init__(self, name: str, clock: ManualClock, post: Callable[[Any], Any]) -> None:
        self._name = name
        self._clock = clock
        self._post = post
        self._keys: dict[str, InlineScheduled] = {}

    def after(self, delay_s: float, event: Any, key: str) -> InlineScheduled:
        """Raises ValueError: `delay_s` is negative or more than a century. TypeError: `key` is no str."""
        due_ms = self._clock.current_processing_time() + _ms(duration_ns("seconds", delay_s))
        return self._once(due_ms, event, key)

    def at(self, unix_s: float, event: Any, key: str) -> InlineScheduled:
        """Raises ValueError: `unix_s` is not a time before the year 10000. TypeError: `key` is no str."""
        return self._once(_ms(unix_ns(unix_s)), event, key)

    def _once(self, due_ms: int, event: Any, key: str) -> InlineScheduled:
        self.cancel(key)
        one = InlineScheduled(self._clock, due_ms, 0, lambda: self._post(event))
        if key:
            self._keys[key] = one
        return one

    def scheduled(self, prefix: str) -> dict[str, InlineScheduled]:
        """By key, soonest first."""
        self._keys = {key: one for key, one in self._keys.items() if not one.is_done()}
        found = [(one.due or 0.0, key) for key, one in self._keys.items() if key.startswith(prefix)]
        return {key: self._keys[key] for _, key in sorted(found)}

    def cancel(self, key: str) -> bool:
        """Raises TypeError: `key` is no str."""
        one = self._keys.pop(checked_key(key), None)
        return one is not None and not one.is_done() and one.cancel()

    def every(
        self, period_s: float, event_or_factory: Any, first_s: float | None, jitter: float, key: str
    ) -> InlineScheduled:
        """Raises ValueError or TypeError, as an AsyncDispatcher does."""
        period_ns, first_ns = rhythm_ns(period_s, first_s, jitter)
        is_event = is_event_not_factory(event_or_factory)
        in_use = self._keys.get(checked_key(key))
        if in_use is not None and in_use.is_periodic() and not in_use.is_done():
            raise InvalidValueError(f"{self._name}: post_every(key={key!r}) is in use; cancel that first")
        self.cancel(key)
        due_ms = self._clock.current_processing_time() + _ms(first_ns)
        post = self._post
        one = InlineScheduled(
            self._clock,
            due_ms,
            _ms(period_ns),
            lambda: post(event_or_factory if is_event else event_or_factory()),
        )
        if key:
            self._keys[key] = one
        return one


def _ms(ns: int) -> int:
    return -(-ns // 1_000_000)
