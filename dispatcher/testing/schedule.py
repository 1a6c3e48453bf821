"""Posting at times of a ManualClock, for the InlineDispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.queue.due import checked_key, duration_ns, is_event_not_factory, unix_ns
from dispatcher.queue.rules import FiringRule


class InlineScheduled:
    """A ScheduledEvent of the clock. Times are whole milliseconds, rounded up."""

    def __init__(
        self,
        clock: ManualClock,
        next_ns: int,
        post: Callable[[], Any],
        event: Any,
        key: str,
        rule: FiringRule | None = None,
    ) -> None:
        """`rule`: None, if it fires once. `post` is called on the thread that advances the clock, as is due."""
        self.key = key
        self.event = event
        self.repeats = rule
        self._clock = clock
        self._post = post
        self.next_ns: int | None = next_ns  # None: never again
        self.last_ns: int = 0
        self._is_cancelled = False
        self._timer = clock.register_timer(_ms(next_ns), self._fire)

    def cancel(self) -> bool:
        """Stop it from firing; False if it has fired for the last time."""
        if self.next_ns is not None:
            self.next_ns, self._is_cancelled = None, True
            self._timer.cancel()
        return self._is_cancelled

    @property
    def due(self) -> float | None:
        """When it is due next, in seconds of the clock; None if never again."""
        return None if self.next_ns is None else _ms(self.next_ns) / 1000

    @property
    def last_fired(self) -> float | None:
        """The last time for which it was posted, in seconds of the clock; None: it was not."""
        return _ms(self.last_ns) / 1000 if self.last_ns else None

    @property
    def rule(self) -> dict[str, Any]:
        """The arguments of `post_every` for its times; empty for a single event."""
        return self.repeats.arguments() if self.repeats is not None else {}

    def is_done(self) -> bool:
        """Whether it will not fire again."""
        return self.next_ns is None

    def _fire(self, _: int) -> None:
        assert self.next_ns is not None
        if self.repeats is None:
            self.next_ns = None
            self._post()
            return
        self.last_ns, self.next_ns = self.next_ns, self.repeats.following(self.next_ns)
        try:
            self._post()
        finally:
            if self.next_ns is not None:  # not cancelled meanwhile
                self._timer = self._clock.register_timer(_ms(self.next_ns), self._fire)


class InlineSchedule:
    """The events of one InlineDispatcher that are posted later."""

    def __init__(self, name: str, clock: ManualClock, post: Callable[[Any], Any]) -> None:
        self._name = name
        self._clock = clock
        self._post = post
        self._keys: dict[str, InlineScheduled] = {}

    def after(self, delay_s: float, event: Any, key: str) -> InlineScheduled:
        """Raises ValueError: `delay_s` is negative or more than a century. TypeError: `key` is no str."""
        return self._once(self._now_ns() + duration_ns("seconds", delay_s), event, key)

    def at(self, unix_s: float, event: Any, key: str) -> InlineScheduled:
        """Raises ValueError: `unix_s` is not a time before the year 10000. TypeError: `key` is no str."""
        return self._once(unix_ns(unix_s), event, key)

    def _once(self, due_ns: int, event: Any, key: str) -> InlineScheduled:
        self.cancel(key)
        return self._held(InlineScheduled(self._clock, due_ns, lambda: self._post(event), event, key))

    def scheduled(self, prefix: str) -> dict[str, InlineScheduled]:
        """By key, soonest first."""
        self._keys = {key: one for key, one in self._keys.items() if not one.is_done()}
        found = [(one.due or 0.0, key) for key, one in self._keys.items() if key.startswith(prefix)]
        return {key: self._keys[key] for _, key in sorted(found)}

    def cancel(self, key: str) -> bool:
        """Raises TypeError: `key` is no str."""
        one = self._keys.pop(checked_key(key), None)
        return one is not None and not one.is_done() and one.cancel()

    def every(self, rule: FiringRule, event: Any, first_s: float | None, key: str) -> InlineScheduled:
        """Raises ValueError or TypeError, as an AsyncDispatcher does."""
        first_ns = None if first_s is None else duration_ns("first", first_s)
        is_event, post = is_event_not_factory(event), self._post
        next_ns, last_ns = rule.first(self._now_ns(), first_ns), 0
        older = self._keys.get(checked_key(key))
        older_rule = older.repeats if older is not None else None
        if older is not None and older.next_ns is not None and older_rule and older_rule.rhythm == rule.rhythm:
            next_ns, last_ns = older.next_ns, older.last_ns
        self.cancel(key)
        one = InlineScheduled(self._clock, next_ns, lambda: post(event if is_event else event()), event, key, rule)
        one.last_ns = last_ns
        return self._held(one)

    def _held(self, one: InlineScheduled) -> InlineScheduled:
        if one.key:
            self._keys[one.key] = one
        return one

    def _now_ns(self) -> int:
        return self._clock.current_processing_time() * 1_000_000


def _ms(ns: int) -> int:
    return -(-ns // 1_000_000)
