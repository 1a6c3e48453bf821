"""Services that refuse calls beyond a limit, and operators that call them, in virtual time.

All runs on the test's thread: a ManualClock, a mailbox for all operators, and hosts whose calls are timers. So a run is
repeatable, and a second of it takes milliseconds.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.mailbox import MailboxExecutor, ManualClock, TaskMailbox
from pipeline.streaming import AsyncWaitOperator, RetryAfter, StreamRecord

from ..harness import CallHost, HostCall


class Schedule:
    """A service's limit in calls per second, as it changes: (from this second on, calls per second)."""

    def __init__(self, *changes: tuple[float, float]) -> None:
        self._changes = changes

    def at(self, now_ms: float) -> float:
        return [calls_per_s for from_s, calls_per_s in self._changes if from_s * 1000 <= now_ms][-1]

    def ideal_s(self, calls: int) -> float:
        """The seconds for so many calls, if none is refused and the limit is used all the time."""
        for (from_s, calls_per_s), (until_s, _) in zip(
            self._changes, [*self._changes[1:], (math.inf, 0.0)], strict=True
        ):
            if calls <= calls_per_s * (until_s - from_s):
                return from_s + calls / calls_per_s
            calls -= int(calls_per_s * (until_s - from_s))
        raise AssertionError("the last limit holds for ever")


class Service(ABC):
    """Counts the calls that it accepts and refuses. `retry_after_s`: what it answers; None: what is right."""

    def __init__(self, schedule: Schedule, retry_after_s: float | None = None) -> None:
        self.schedule = schedule
        self.retry_after_s = retry_after_s
        self.calls_ms: list[int] = []
        self.refused = 0

    def call(self, now_ms: int) -> float | None:
        """None: accepted; otherwise the seconds after which to call again."""
        self.calls_ms.append(now_ms)
        wait_s = self.wait_s(now_ms, self.schedule.at(now_ms))
        if wait_s is None:
            return None
        self.refused += 1
        return wait_s if self.retry_after_s is None else self.retry_after_s

    @abstractmethod
    def wait_s(self, now_ms: int, calls_per_s: float) -> float | None: ...

    @property
    def refused_share(self) -> float:
        return self.refused / len(self.calls_ms)


class TokenBucket(Service):
    """Holds the tokens of `burst_s` seconds."""

    burst_s = 0.2
    _tokens: float | None = None
    _at_ms = 0

    def wait_s(self, now_ms: int, calls_per_s: float) -> float | None:
        size = max(1.0, self.burst_s * calls_per_s)
        tokens = size if self._tokens is None else self._tokens
        self._tokens = min(size, tokens + (now_ms - self._at_ms) * calls_per_s / 1000)
        self._at_ms = now_ms
        if self._tokens < 1:
            return (1 - self._tokens) / calls_per_s
        self._tokens -= 1
        return None


class FixedWindow(Service):
    """Accepts the calls of a second at the beginning of each second."""

    _window = -1
    _accepted = 0

    def wait_s(self, now_ms: int, calls_per_s: float) -> float | None:
        if self._window != now_ms // 1000:
            self._window, self._accepted = now_ms // 1000, 0
        if self._accepted >= calls_per_s:
            return 1 - now_ms % 1000 / 1000
        self._accepted += 1
        return None


class SlidingWindow(Service):
    """Accepts a call if there were fewer than the limit in the second before it."""

    def __init__(self, schedule: Schedule, retry_after_s: float | None = None) -> None:
        super().__init__(schedule, retry_after_s)
        self._accepted_ms: deque[int] = deque()

    def wait_s(self, now_ms: int, calls_per_s: float) -> float | None:
        accepted_ms = self._accepted_ms
        while accepted_ms and accepted_ms[0] <= now_ms - 1000:
            accepted_ms.popleft()
        if len(accepted_ms) >= calls_per_s:
            return (accepted_ms[0] + 1000 - now_ms) / 1000
        accepted_ms.append(now_ms)
        return None


class SimulatedHost(CallHost):
    """Calls a service on the clock: half of a call's time is its way there, the other half its way back."""

    def __init__(self, service: Service, clock: ManualClock, latency_ms: float, seed: int) -> None:
        super().__init__(lambda value: value, "simulated")
        self._service = service
        self._clock = clock
        self._latency_ms = latency_ms
        self._random = random.Random(seed)

    has_ended = False

    def abandon(self) -> None: ...

    def start(self) -> None: ...

    def stop(self, timeout: float = 10.0) -> bool:
        return True

    def cancel(self, call: HostCall) -> None:
        call.is_cancelled = True

    def submit(self, calls: Sequence[HostCall]) -> None:
        for call in calls:
            self._submit(call)

    def _submit(self, call: HostCall) -> None:
        half_ms = max(1, round(self._latency_ms * self._random.uniform(0.7, 1.3) / 2))
        now_ms = self._clock.current_processing_time()
        call.started_ns = now_ms * 1_000_000 + 1
        self._clock.register_timer(now_ms + half_ms, lambda due_ms: self._arrive(call, due_ms, half_ms))

    def _arrive(self, call: HostCall, now_ms: int, half_ms: int) -> None:
        retry_after_s = self._service.call(now_ms)
        self._clock.register_timer(now_ms + half_ms, lambda due_ms: self._answer(call, due_ms, retry_after_s))

    def _answer(self, call: HostCall, now_ms: int, retry_after_s: float | None) -> None:
        if retry_after_s is None:
            call.results = [call.value]
        else:
            call.error = RetryAfter(retry_after_s)
        call.ended_ns = now_ms * 1_000_000 + 1
        call.box.put(call)


def run(
    service: Service,
    rows: int,
    rate_limits: Sequence[Any],
    *,
    latency_ms: float = 10,
    concurrency: int = 100,
    seed: int = 1,
    during: Callable[[int], None] = lambda now_ms: None,
) -> float:
    """Call the service once for each row, by one operator for each of `rate_limits`; return the seconds it took.

    Each operator is a task of the job, in a worker of its own, with an equal part of the rows. `during` is called after
    each moment in which anything happens.
    """
    clock, mailbox = ManualClock(), TaskMailbox()
    executor = MailboxExecutor(mailbox, 0)
    output: list[Any] = []
    operators = [
        AsyncWaitOperator(
            SimulatedHost(service, clock, latency_ms, seed + number),
            timeout_ms=0,
            capacity=rows,
            concurrency=concurrency,
            output_mode="unordered",
            rate_limit=rate_limit,
            mailbox_executor=executor,
            processing_time_service=clock,
            output=output.append,
        )
        for number, rate_limit in enumerate(rate_limits)
    ]
    for operator in operators:
        operator.open()
    for row in range(rows):
        operators[row % len(operators)].process_element(StreamRecord(row))
    while len(output) < rows:
        while executor.try_yield():
            pass
        during(clock.current_processing_time())
        if len(output) < rows:
            assert clock.advance_to_next_timer(), "nothing is left that could happen"
    for operator in operators:
        operator.close()
    assert sorted(record.value for record in output) == list(range(rows))
    return clock.current_processing_time() / 1000
