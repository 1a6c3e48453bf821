"""Events of `async def` handlers with a rate: each waits for its turn once its key lets it begin.

A line is the events that wait for one limiter, in their order. Only the first one has a reservation. If its event
is withdrawn, the reservation goes to the next event, so a withdrawn event costs no turn. The alarm rings when the time
of a reservation has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from dispatcher.dispatching.lanes import Call, Lane, LaneOwner, TurnLine
from dispatcher.event import AsyncioHandler
from dispatcher.mailbox.parking import NEVER
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.inbox import Inbox
from dispatcher.util.foreign import reraise_interrupt
from dispatcher.util.rate_limit import RateLimit, RateLimiter

_NS_PER_MS: Final = 1e6
_SWEEP_FROM: Final = 1000
"""The number of keys from which on those whose rate has recovered are forgotten."""


class Turns:
    """When the lines of one dispatcher come to their turns. Handler thread, unless a method says otherwise."""

    def __init__(self, inbox: Inbox, alarm: Alarm, send: Callable[[Callable[[], None], str], None]) -> None:
        """`send(action, description)` runs the action on the handler thread."""
        self._inbox = inbox  # never changes, like all fields that do not say otherwise
        self._alarm = alarm
        self._send = send
        # The lines that have calls, by the time of the first one's turn on the monotonic clock; guarded by the inbox's
        # lock. A line is here once, or in a mail that `fire` has sent.
        self._due: list[tuple[float, int, TurnLine, RatedLane]] = []
        self._numbers = count()
        with inbox.lock:
            alarm.sources.append(self)

    def now_ms(self) -> float:
        return self._alarm.now_ns(False) / _NS_PER_MS

    def wait_until(self, start_ms: float, line: TurnLine, lane: RatedLane) -> None:
        """Let the first call of the lane's line wait until then."""
        with self._inbox.lock:
            heappush(self._due, (start_ms, next(self._numbers), line, lane))
        self._alarm.arm()

    def delay_ns(self) -> float:
        """The time until the first turn; NEVER: no call waits for one."""
        return self._due[0][0] * _NS_PER_MS - self._alarm.now_ns(False) if self._due else NEVER

    def fire(self) -> bool:
        """Let the first call whose turn has come begin; False if none has."""
        with self._inbox.lock:
            if self.delay_ns() > 0:
                return False
            _, _, line, lane = heappop(self._due)
        self._send(lambda: lane.let_begin(line), "an event of a handler with a rate has its turn")
        return True


class RatedLane(Lane):
    """The lane of a handler with a rate: a call whose key lets it begin waits for its turn, and then for a slot."""

    lets_loop_begin = False

    def __init__(self, handler: AsyncioHandler, loop: Any, owner: LaneOwner, limit: RateLimit, turns: Turns) -> None:
        super().__init__(handler, loop, owner)
        self._limit = limit  # never changes
        self._turns = turns  # never changes
        shared = handler.limiter
        self._shared = TurnLine(shared) if shared is not None else None  # never changes; None: one for each key
        self._turn_lines: dict[Any, TurnLine] = {}  # by key; handler thread
        self._sweep_at = _SWEEP_FROM  # handler thread
        self._coming: tuple[TurnLine, float] | None = None  # of the call that `put` gets next; handler thread

    def line_of(self, event: Any) -> Any:
        """The event's key and line. This also calls the user's function for the cost: its errors are handled here."""
        key, line = super().line_of(event)
        turn_line = self._shared or self._turn_lines.get(key)
        if turn_line is None:
            self._sweep()
            turn_line = self._turn_lines[key] = TurnLine(RateLimiter(self._limit))
        self._coming = turn_line, self._limit.cost_of(event)
        return key, line

    def put(self, call: Call) -> None:
        assert self._coming is not None
        call.turn_line, call.cost = self._coming
        self.calls[call] = None
        if call.line.active >= call.line.limit:
            self._waiting += 1
            call.line.waiting.append(call)
        else:
            self._make_ready(call)
            self._begin_ready()

    def _make_ready(self, call: Call) -> None:
        """Its key lets the call begin: wait for its turn."""
        call.line.active += 1
        line, now_ms = call.turn_line, self._turns.now_ms()
        is_first = not line.calls
        if is_first and (start_ms := line.start_ms(call.cost, now_ms)) > now_ms:
            self._turns.wait_until(start_ms, line, self)
        elif is_first:
            line.reserved = None
            self._have_turn(call)
            return
        self._waiting += 1
        line.calls.append(call)

    def let_begin(self, line: TurnLine) -> None:
        """The time of the line's first call has come. Mail."""
        now_ms = self._turns.now_ms()
        for call in self._take_due(line, now_ms):
            self._waiting -= 1
            self._have_turn(call)
        self._begin_ready()
        self.owner.turns_taken()

    def _take_due(self, line: TurnLine, now_ms: float) -> Iterator[Call]:
        while line.calls:
            call = line.calls[0]
            if call.entry is None or call.entry.outcome is None:  # otherwise it was withdrawn, and needs no turn
                start_ms = line.start_ms(call.cost, now_ms)
                if start_ms > now_ms:
                    self._turns.wait_until(start_ms, line, self)
                    return
                line.reserved = None
            yield line.calls.popleft()

    def _have_turn(self, call: Call) -> None:
        call.is_ready = True
        heappush(self._ready, (call.number, call))

    def drop_unstarted(self) -> list[Call]:
        for line in {call.turn_line for call in self.calls}:
            while line.calls:
                self._waiting -= 1
                self._have_turn(line.calls.popleft())
        return super().drop_unstarted()

    def give_up(self) -> list[Call]:
        for call in self.calls:
            call.turn_line.calls.clear()
        return super().give_up()

    def waits_for(self, call: Call) -> str:
        if not call.is_ready and call.turn_line.calls:
            return f"its turn at {self._limit.calls_per_s:g} events/s, or {super().waits_for(call)}"
        return super().waits_for(call)

    def _sweep(self) -> None:
        """Forget the keys that have their whole burst again."""
        if len(self._turn_lines) < self._sweep_at:
            return
        now_ms, used = self._turns.now_ms(), {call.turn_line for call in self.calls}
        lines = self._turn_lines.items()
        try:
            self._turn_lines = {key: line for key, line in lines if line in used or not line.limiter.is_full(now_ms)}
        except BaseException as error:  # raised by a key; they stay until the next sweep
            reraise_interrupt(error)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._turn_lines))
