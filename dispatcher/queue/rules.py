"""The rule of a repeating schedule: a period, or a cron expression in a time zone.

A rule computes the next time from an earlier one. It reads no clock and knows nothing of the event. It takes the
arguments of `post_every`, which the journal stores unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, get_args

from dispatcher.errors import DispatcherError, InvalidTypeError, InvalidValueError, JournalError
from dispatcher.journal.format.marks import Marks
from dispatcher.queue.due import LONGEST_S, duration_ns, period_and_jitter_ns
from dispatcher.util.foreign import text_of

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Misfire = Literal["once", "all", "skip"]
"""What happens to times that have passed: one post for all of them, one for each, none."""

MOST_MISSED: Final = 100
"""The number of missed times, the newest, that `misfire="all"` makes up for."""
_SKIP_GRACE_S: Final = 1.0
"""With `misfire="skip"`, how late a time is still kept if nothing else is said: no time is kept to the microsecond."""
_SECOND_NS: Final = 1_000_000_000
_HOUR_NS: Final = 3600 * _SECOND_NS


class Firing(NamedTuple):
    """What a schedule does once it is due."""

    at_ns: int | None
    """The time that is posted; None: it was missed, and nothing is posted."""
    next_ns: int
    skipped: int
    """How many of the times up to now are never posted. For a cron expression, this is a lower bound."""


class FiringRule(ABC):
    """When to fire. Times are ns of one clock. It never changes."""

    jitter_ns: int = 0
    """Each firing is delayed by up to that."""

    def __init__(self, misfire: Misfire, grace_s: float | None) -> None:
        if misfire not in get_args(Misfire):
            raise InvalidValueError(f"misfire must be 'once', 'all' or 'skip', not {text_of(misfire)}")
        self.misfire = misfire
        self._grace_s = grace_s
        longest_s = _SKIP_GRACE_S if misfire == "skip" else LONGEST_S
        self._grace_ns = duration_ns("misfire_grace_s", longest_s if grace_s is None else grace_s)

    @property
    @abstractmethod
    def rhythm(self) -> dict[str, Any]:
        """The arguments that say at which times it fires. With equal ones, a newer schedule goes on with the older."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of `post_every` that are not the defaults."""
        given = {"misfire": self.misfire if self.misfire != "once" else None, "misfire_grace_s": self._grace_s}
        return self.rhythm | {name: value for name, value in given.items() if value is not None}

    def first(self, now_ns: int, first_ns: int | None) -> int:
        """The first time of a new schedule; `first_ns` from now, if that is given."""
        return self.following(now_ns) if first_ns is None else now_ns + first_ns

    @abstractmethod
    def following(self, time_ns: int) -> int:
        """The time that follows on one of its times."""

    @abstractmethod
    def going_on(self, next_ns: int, now_ns: int, last_ns: int) -> int:
        """When to fire, if `next_ns` was due next in an earlier run, or before the clock was set back, and `last_ns`
        was the last time posted. The clock may have been ahead then."""

    @abstractmethod
    def _passed(self, due_ns: int, now_ns: int) -> tuple[int, list[int]]:
        """How many times have passed from `due_ns` on, and the newest MOST_MISSED of these, oldest first."""

    def firing(self, due_ns: int, now_ns: int, delay_ns: int) -> Firing:
        """What to do now, for the time that was due; it was delayed by `delay_ns` on purpose."""
        count, times = self._passed(due_ns, now_ns)
        kept = [time_ns for time_ns in times if now_ns - time_ns - delay_ns <= self._grace_ns]
        if not kept:
            return Firing(None, self.following(times[-1]), count)
        if self.misfire == "all":
            return Firing(kept[0], self.following(kept[0]), count - len(kept))
        return Firing(times[-1], self.following(times[-1]), count - 1)

    def __str__(self) -> str:
        return rule_text(self.arguments())


class Every(FiringRule):
    """A period."""

    def __init__(self, seconds: float, jitter: float, misfire: Misfire, grace_s: float | None) -> None:
        super().__init__(misfire, grace_s)
        self.period_ns: int
        self.jitter_ns: int
        self.period_ns, self.jitter_ns = period_and_jitter_ns(seconds, jitter)
        self._seconds = seconds
        self._jitter = jitter

    @property
    def rhythm(self) -> dict[str, Any]:
        return {"seconds": self._seconds}

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | ({"jitter": self._jitter} if self._jitter else {})

    def following(self, time_ns: int) -> int:
        return time_ns + self.period_ns

    def going_on(self, next_ns: int, now_ns: int, last_ns: int) -> int:
        return min(next_ns, now_ns + self.period_ns)

    def _passed(self, due_ns: int, now_ns: int) -> tuple[int, list[int]]:
        count = max(0, now_ns - due_ns) // self.period_ns + 1
        return count, [due_ns + each * self.period_ns for each in range(max(0, count - MOST_MISSED), count)]


class Cron(FiringRule):
    """A cron expression in a time zone, as Debian's cron reads it. Its times are Unix ns.

    An expression whose minute or hour begins with `*` follows elapsed time. When clocks go forward, it does not fire in
    the skipped hour. When they go back, it fires in both passes of the repeated hour. Any other expression fires once a
    day at each of its times of day: a skipped time moves to the moment when the clocks go forward, and of a repeated
    time only the first counts.
    """

    def __init__(self, cron: str, tz: str, misfire: Misfire, grace_s: float | None) -> None:
        """Raises DispatcherError: the extra is missing. Otherwise as `rule_of`."""
        super().__init__(misfire, grace_s)
        try:
            from cronsim import CronSim, CronSimError
        except ModuleNotFoundError as error:
            raise DispatcherError(
                f"post_every(cron=...) needs its extra (no module {error.name}): pip install 'central-dispatcher[cron]'"
            ) from error
        if not isinstance(cron, str):
            raise InvalidTypeError(f"cron must be a str such as '0 7 * * 1-5', not {text_of(cron)}")
        self._cron, self._tz = cron, tz
        self._zone = _zone_of(tz)
        self._sim = CronSim
        try:
            if len(cron.split()) != 5:
                raise CronSimError(f"it has {len(cron.split())} fields")
            next(CronSim(cron, datetime.fromtimestamp(0, self._zone)))
        except StopIteration:
            raise InvalidValueError(f"cron={cron!r} has no time in 50 years") from None
        except CronSimError as error:
            raise InvalidValueError(
                f"cron must have five fields, minute, hour, day of the month, month and day of the week, such as "
                f"'0 7 * * 1-5', not {cron!r}: {error}"
            ) from error

    @property
    def rhythm(self) -> dict[str, Any]:
        return {"cron": self._cron, "tz": self._tz}

    def following(self, time_ns: int) -> int:
        """The first time after any moment."""
        return next(self._times(time_ns), time_ns + LONGEST_S * _SECOND_NS)

    def going_on(self, next_ns: int, now_ns: int, last_ns: int) -> int:
        if next_ns <= now_ns:
            return next_ns
        # From now on, and not from `next_ns`: the clock may have been ahead, and the zone's rules may have changed.
        first_ns = self.following(now_ns)
        return self.following(first_ns) if first_ns == last_ns else first_ns

    def _passed(self, due_ns: int, now_ns: int) -> tuple[int, list[int]]:
        found = [due_ns, *islice(self._between(due_ns, now_ns), MOST_MISSED)]
        if len(found) <= MOST_MISSED:
            return len(found), found
        # Years of minutes may have passed: look for the newest ones from ever earlier moments on.
        span_ns, since_ns = _HOUR_NS, now_ns
        newest: deque[int] = deque(maxlen=MOST_MISSED)
        while len(newest) < MOST_MISSED:
            since_ns, span_ns = max(due_ns, now_ns - span_ns), 2 * span_ns
            newest.clear()
            count = 0
            for time_ns in self._between(since_ns, now_ns):
                newest.append(time_ns)
                count += 1
        return count + 1, list(newest)

    def _between(self, after_ns: int, until_ns: int) -> Iterator[int]:
        for time_ns in self._times(after_ns):
            if time_ns > until_ns:
                return
            yield time_ns

    def _times(self, after_ns: int) -> Iterator[int]:
        """Those after any moment, in order."""
        try:
            after = datetime.fromtimestamp(after_ns // _SECOND_NS, self._zone)
            for found in self._sim(self._cron, after):
                time_ns = int(found.timestamp()) * _SECOND_NS
                if time_ns > after_ns:  # it reads a moment of an hour that comes twice as one of the first
                    yield time_ns
        except (OverflowError, ValueError, OSError):  # the year 9999 is over
            return


class RuleOptions(TypedDict, total=False):
    """The options of `post_every`, which `AsyncDispatcher.post_every` describes. `rule_of` has their defaults."""

    cron: str | None
    tz: str
    first: float | None
    jitter: float
    misfire: Misfire
    misfire_grace_s: float | None


def rule_of(
    *,
    seconds: float | None = None,
    cron: str | None = None,
    tz: str = "UTC",
    first: float | None = None,
    jitter: float = 0.0,
    misfire: Misfire = "once",
    misfire_grace_s: float | None = None,
) -> FiringRule:
    """The rule with these arguments of `post_every`.

    Raises:
        ValueError: one is out of its range, or two exclude each other. TypeError: one has a wrong type, or there is
            neither a period nor a cron expression. DispatcherError: the extra `cron` is missing.
    """
    if cron is None:
        if seconds is None:
            raise InvalidTypeError("post_every takes a number of seconds or cron='...', and got neither")
        if tz != "UTC":
            raise InvalidValueError(f"tz={tz!r} goes with cron=, not with seconds, which are the same in every zone")
        return Every(seconds, jitter, misfire, misfire_grace_s)
    if seconds is not None:
        raise InvalidValueError("post_every takes seconds or cron=, not both")
    if first is not None or jitter:
        raise InvalidValueError("first and jitter go with seconds, not with cron=")
    return Cron(cron, tz, misfire, misfire_grace_s)


def rule_text(arguments: Mapping[str, Any]) -> str:
    """`every 60 s`, `cron 0 7 * * 1-5 Europe/Berlin, misfire=all`."""
    others = dict(arguments)
    if "cron" in others:
        times = f"cron {others.pop('cron')} {others.pop('tz')}"
    else:
        times = f"every {others.pop('seconds'):g} s"
    return ", ".join((times, *(f"{name}={value}" for name, value in others.items())))


def _zone_of(tz: str) -> ZoneInfo:
    """Raises ValueError: there is no such zone. TypeError: it is no str."""
    from difflib import get_close_matches
    from zoneinfo import ZoneInfo, available_timezones

    if not isinstance(tz, str):
        raise InvalidTypeError(f"tz must be the name of a time zone, such as 'Europe/Berlin', not {text_of(tz)}")
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as error:  # OSError: it is the name of a folder
        known = available_timezones()
        near = get_close_matches(tz, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else "" if known else " Install tzdata: this system has no zones."
        raise InvalidValueError(f"tz: there is no time zone {tz!r}.{hint}") from error


def stored_rule(marks: Marks, dispatcher: str) -> FiringRule | None:
    """The rule of a line in the journal. Raises JournalError: it cannot be read. DispatcherError: as `rule_of`."""
    try:
        return None if marks.rule is None else rule_of(**marks.rule)
    except (TypeError, ValueError) as error:
        raise JournalError(
            f"{dispatcher}: the rule of post_every(key={marks.key!r}) in the journal cannot be read: {error}. "
            "`dispatcher journal scheduled JOURNAL --forget KEY` forgets it."
        ) from error
