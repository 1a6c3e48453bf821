"""Trying an event again whose handler raised: `register(..., on_error=Retry(...))`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.queue.due import LONGEST_S

Then = Literal["dead_letter", "continue", "stop", "exit"]
_THEN: Final = get_args(Then)
_BOUNDS: Final = (("delay_s", 0.0, LONGEST_S), ("factor", 1.0, sys.float_info.max), ("max_delay_s", 0.0, LONGEST_S))


@dataclass(frozen=True, slots=True)
class Retry:
    """Handle the event again, up to `attempts` times in all, if the error is one of `on`.

    After the n-th failure, the delay is `delay_s * factor ** (n - 1)` seconds, up to `max_delay_s`. A random jitter
    changes it by up to `jitter` of itself, for example 0.1 for a tenth. Until then the event is retrying, neither
    queued nor being handled, and other events go on. With `ordered_by_key`, later events of its Enum class with the
    same `lock_key` wait behind it.

    After the last attempt, or after an error that isn't one of `on`, the event has failed, and `then` applies.
    `dead_letter` hands it to the dispatcher's dead letters, and `continue` drops it. `stop` stops the dispatcher, and
    `exit` ends the process. Both hand the event to the dead letters as well.

    Raises:
        ValueError: a number or `then` is invalid; for a delay, that's more than a century. The message names it.
        TypeError: `on` isn't made of exception classes, or a delay isn't a number.
    """

    attempts: int = 5
    delay_s: float = 0.5
    factor: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.1
    on: type[BaseException] | tuple[type[BaseException], ...] = Exception
    then: Then = "dead_letter"
    ordered_by_key: bool = False

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidValueError(f"attempts must be a whole number, 1 or more, not {self.attempts!r}")
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if not isinstance(value, int | float):
                raise InvalidTypeError(f"{name} must be a number, not {value!r}")
            if not least <= value <= most:
                raise InvalidValueError(f"{name} must be a number, {least:g} or more, up to {most:g}, not {value!r}")
        if not isinstance(self.jitter, int | float):
            raise InvalidTypeError(f"jitter must be a number, not {self.jitter!r}")
        if not 0 <= self.jitter <= 1:
            raise InvalidValueError(f"jitter is a part of the delay, from 0 to 1, not {self.jitter!r}")
        if self.then not in _THEN:
            raise InvalidValueError(f"then is one of {', '.join(_THEN)}, not {self.then!r}")
        classes = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
            raise InvalidTypeError(f"on takes exception classes, not {self.on!r}")

    def delay_ns(self, failures: int) -> int:
        """Return the delay after that many failures, 1 or more."""
        try:
            delay_s = min(self.delay_s * float(self.factor) ** (failures - 1), self.max_delay_s)
        except OverflowError:  # of the power
            delay_s = self.max_delay_s if self.delay_s else 0.0
        return int(delay_s * (1 + self.jitter * random.uniform(-1, 1)) * 1e9)


OnError = (
    Literal["continue", "stop", "exit"]
    | Retry
    | Callable[[Any, BaseException], Literal["continue", "stop", "exit"] | Retry]
)
"""What happens when a handler raises. A callable gets the event and the error, on the handler thread, and decides."""
