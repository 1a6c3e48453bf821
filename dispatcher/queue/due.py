"""The arguments of posts at a time."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.util.foreign import is_member, text_of, type_of
from dispatcher.util.functions import require_plain

_SHORTEST_PERIOD_NS: Final = 1_000_000
"""A shorter period would keep the thread busy that all timers share."""
LONGEST_S: Final = 3_155_760_000
"""A century."""
_LAST_UNIX_S: Final = 253_402_300_799


def duration_ns(name: str, seconds: float) -> int:
    """Raises ValueError, which calls it `name`: it is negative, or more than a century. TypeError: it is no number."""
    _require_number(name, seconds)
    if not 0 <= seconds <= LONGEST_S:
        raise InvalidValueError(
            f"{name} must be a number of seconds, from 0 to {LONGEST_S:,} (a century), not {seconds}"
        )
    return _whole_us(seconds)


def unix_ns(unix_s: float) -> int:
    """Raises ValueError: it is not a time before the year 10000. TypeError: it is no number."""
    _require_number("unix_s", unix_s)
    if not abs(unix_s) <= _LAST_UNIX_S:
        raise InvalidValueError(f"unix_s must be a time in Unix seconds, before the year 10000, not {unix_s}")
    return _whole_us(unix_s)


def period_and_jitter_ns(period_s: float, jitter: float) -> tuple[int, int]:
    """The period, and the longest delay of a firing.

    Raises:
        ValueError: `period_s` is less than a millisecond, or `jitter` is not between 0 and 1. TypeError: one is no
            number.
    """
    period_ns = duration_ns("seconds", period_s)
    if period_ns < _SHORTEST_PERIOD_NS:
        raise InvalidValueError(f"seconds must be 0.001 or more, not {period_s}")
    _require_number("jitter", jitter)
    if not 0 <= jitter <= 1:
        raise InvalidValueError(f"jitter is a part of the period, from 0 to 1, not {jitter}")
    return period_ns, int(period_ns * jitter)


def checked_key(key: str) -> str:
    """Raises TypeError: it is no str."""
    if not isinstance(key, str):
        raise InvalidTypeError(f"key must be a str, not {text_of(key)}")
    return key


def is_event_not_factory(event_or_factory: Any) -> bool:
    """Raises TypeError: it is neither an event nor a callable, or a call of it makes no event."""
    is_event = is_member(type_of(event_or_factory))
    if not is_event and not callable(event_or_factory):
        raise InvalidTypeError(
            f"post_every takes an event or a callable that makes one, not {text_of(event_or_factory)}"
        )
    if not is_event:
        require_plain(event_or_factory, "the factory of post_every", "makes an event")
    return is_event


def _require_number(name: str, value: Any) -> None:
    if not isinstance(value, int | float):
        raise InvalidTypeError(f"{name} must be a number, not {text_of(value)}")


def _whole_us(seconds: float) -> int:
    """The seconds in ns, rounded to microseconds: a float of Unix seconds is no more exact."""
    return round(seconds * 1e6) * 1000
