"""What `top` shows: the last look at the daemon, a minute of history, and the user's choices. One thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from dispatcher.cli.ops.look import DaemonSummary
from dispatcher.ops.dispatchers import EventTypeNumbers, Failure, Queued, QueuedEntity
from dispatcher.ops.entities import EntityDetails
from dispatcher.ops.overview import Problem
from dispatcher.ops.stacks import RunningHandler

HISTORY_S: Final = 60


class Sort(Enum):
    """The column that sorts the event types, greatest first; equal ones by time, then by rate, as in the ops API.

    The values are the ops API's.
    """

    QUEUED = "queued"
    RATE = "rate"
    TIME = "time"
    FAILED = "failed"

    def of(self, numbers: EventTypeNumbers) -> tuple[float, float, float]:
        """The values of a type that decide."""
        time, rate = numbers.handling_share_10s or 0.0, numbers.rate_10s or 0.0
        match self:
            case Sort.QUEUED:
                return numbers.queued, time, rate
            case Sort.RATE:
                return rate, time, rate
            case Sort.TIME:
                return time, time, rate
        return numbers.failed, time, rate


@dataclass(frozen=True)
class Wish:
    """What the next look asks for."""

    dispatcher: str | None = None
    """None: the dispatcher that needs attention most."""
    sort: Sort = Sort.QUEUED
    wants_all_types: bool = False
    entity: str | None = None


@dataclass(frozen=True)
class Look:
    """A daemon's answers of one second."""

    at_s: float
    """Seconds of the monotonic clock."""
    summary: DaemonSummary
    dispatcher: str | None
    """The dispatcher with these types, run and failures; None: the daemon has no dispatcher."""
    types: Sequence[EventTypeNumbers] = ()
    running: RunningHandler | None = None
    failures: Sequence[Failure] = ()
    queued: Queued[QueuedEntity] | None = None
    """The entities with most events in the queue; None: nothing is queued."""
    entity: EntityDetails | str | None = None
    """The requested entity, or why it cannot be shown."""
    problems: Sequence[Problem] = ()
    """The gravest first."""
    has_details: bool = True
    """False: types, run, failures and queue have not been asked for yet."""

    def of_another(self, dispatcher: str) -> Look:
        """This look without details, for the dispatcher that the user has just selected."""
        return replace(self, dispatcher=dispatcher, types=(), running=None, failures=(), queued=None, has_details=False)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.summary.as_json(),
            "problems": [each.model_dump() for each in self.problems],
            "dispatcher": self.dispatcher,
            "types": [each.model_dump() for each in self.types],
            "running": self.running.model_dump() if self.running is not None else None,
            "failures": [each.model_dump() for each in self.failures],
            "queued_by_entity": self.queued.model_dump(include={"items", "approximate"}) if self.queued else None,
        }


@dataclass
class History:
    """One dispatcher's last 60 s, a value per second; None: no answer in that second."""

    queue: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY_S))
    rate: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY_S))
    total: int = 0
    """Values added so far, including those that have left the deques."""

    def add(self, queue: float | None, rate: float | None) -> None:
        self.queue.append(queue)
        self.rate.append(rate)
        self.total += 1


@dataclass
class Lost:
    """The daemon has stopped answering."""

    since_s: float
    reason: str


class TopState:
    """Everything a frame shows."""

    def __init__(self) -> None:
        self.wish: Wish = Wish()
        self.filter = ""
        self.is_paused = False
        self.look: Look | None = None
        self.lost: Lost | None = None
        self.cpu_share: float | None = None
        self.restarts: int = 0
        self.histories: dict[str, History] = {}

    def seen(self, look: Look) -> None:
        """Record a new look. A restart of the daemon clears the history."""
        before = self.look
        if before is not None and _is_other_process(before, look):
            self.histories.clear()
            self.restarts += 1
            before = None
        self.cpu_share = _cpu_share(before, look)
        missed = 0 if before is None else min(HISTORY_S, max(0, round(look.at_s - before.at_s) - 1))
        names = {each.name for each in look.summary.dispatchers}
        for name in self.histories.keys() - names:
            del self.histories[name]
        for each in look.summary.dispatchers:
            history = self.histories.setdefault(each.name, History())
            for _ in range(missed if history.total else 0):
                history.add(None, None)
            history.add(each.queue.size, each.rate.s1)
        self.look, self.lost = look, None

    def missed(self, reason: str, now_s: float) -> None:
        """Record that the daemon did not answer."""
        self.lost = Lost(self.lost.since_s if self.lost else now_s, reason)

    def types(self) -> list[EventTypeNumbers]:
        """The event types that match the filter, sorted."""
        if self.look is None:
            return []
        wanted = self.filter.casefold()
        shown = [each for each in self.look.types if wanted in each.name.casefold()]
        return sorted(shown, key=self.wish.sort.of, reverse=True)

    def select(self, step: int) -> None:
        """Select the next dispatcher; with -1, the previous one."""
        if self.look is None or not self.look.summary.dispatchers:
            return
        names = [each.name for each in self.look.summary.dispatchers]
        at = names.index(self.look.dispatcher) if self.look.dispatcher in names else 0
        chosen = names[min(len(names) - 1, max(0, at + step))]
        self.wish = replace(self.wish, dispatcher=chosen)
        if chosen != self.look.dispatcher:
            self.look = self.look.of_another(chosen)


def _is_other_process(before: Look, after: Look) -> bool:
    old, new = before.summary.process, after.summary.process
    return old.pid != new.pid or new.uptime_s < old.uptime_s


def _cpu_share(before: Look | None, after: Look) -> float | None:
    now, passed_s = after.summary.process.cpu_s, after.at_s - before.at_s if before else 0.0
    earlier = before.summary.process.cpu_s if before else None
    if now is None or earlier is None or passed_s <= 0:
        return None
    return max(0.0, now - earlier) / passed_s
