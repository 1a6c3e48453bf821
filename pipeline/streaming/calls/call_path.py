"""The path of a call from the operator to its host: concurrency limit, rate limit, batch.

Mailbox thread only. A call waits in at most one place at a time: in line for a concurrency slot and its turn at the
rate limit, or in a batch that is filling or waits for a slot. A call that times out there is dropped there. During a
pause, waiting calls stay where they are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.errors import RejectedExecutionError
from dispatcher.mailbox import MailboxExecutor, ProcessingTimeService, TimerFuture
from pipeline.streaming.calls.functions import check_batch_results
from pipeline.streaming.calls.hosts.call_host import AnswerBox, Call, CallHost
from pipeline.streaming.calls.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.options import AsyncOptions


class RecordCall(Call):
    """The call for one record; made again with each retry."""

    is_done = False  # the queue has its outcome
    deadline_ms = 0
    prolonged_ms = 0  # extension of the deadline
    attempts = 1  # as the retry strategy counts them
    retry_timer: TimerFuture | None = None  # set while it waits for a retry
    key: Any = None  # records of equal keys share a call
    is_begun = False  # an attempt is under way: neither answered nor given up
    is_first = True  # no attempt has been answered yet
    leads = False  # it makes the call for its key
    batch: BatchCall | None = None  # the batch it was sent in

    def __init__(self, value: Any, box: AnswerBox, entry: Any, taken_ns: int) -> None:
        self.value = value
        self.box = box
        self.entry = entry  # the queue's future, which gets the outcome
        self.taken_ns = taken_ns  # when the operator took the record in

    def waited_ms(self) -> int:
        """From taking the record in to the start of its call."""
        return (self.started_ns - self.taken_ns) // 1_000_000

    def prepare_again(self) -> None:
        """Clear the answer before the call is made again. The host released the call when it answered."""
        self.results = self.error = self.batch = None
        self.started_ns = self.ended_ns = 0


class BatchCall(Call):
    """One call for many records. Its results have one entry for each member."""

    def __init__(self, members: list[RecordCall], box: AnswerBox) -> None:
        super().__init__([member.value for member in members], box)
        self.members = members
        self.wanted = len(members)  # members that are not late

    def hand_out(self) -> list[RecordCall]:
        """Give each member that is not late its part of the answer; return those members."""
        entries: Sequence[Any] = ()
        error = self.error
        if error is None:
            try:
                entries = check_batch_results(self.results, len(self.members))
            except (TypeError, ValueError) as refused:
                error = refused
        answered = []
        for index, member in enumerate(self.members):
            if member.is_done:
                continue
            member.batch, member.started_ns, member.ended_ns = None, self.started_ns, self.ended_ns
            if error is not None:
                member.error = error
            elif isinstance(entries[index], BaseException):
                member.error = entries[index]
            else:
                member.results = entries[index]
            answered.append(member)
        return answered


class CallPath:
    """Starts calls when the limits allow it.

    `nothing_follows`: whether no call will begin before another has ended, so that an open batch cannot fill up.
    """

    def __init__(
        self,
        host: CallHost,
        box: AnswerBox,
        executor: MailboxExecutor,
        timers: ProcessingTimeService,
        options: AsyncOptions,
        nothing_follows: Callable[[], bool],
    ) -> None:
        limit = options.rate_limit
        limiter = host.limiter_for(limit) if isinstance(limit, RateLimit) else limit
        concurrency = options.concurrency
        self._host = host
        self._box = box
        self._executor = executor
        self._timers = timers
        self._limiter = limiter
        # The operator's own limit, for its cost: equal limits share a limiter, whatever their cost functions are.
        self._limit = limit.limit if isinstance(limit, RateLimiter) else limit
        self._line: deque[RecordCall] = deque()  # waits for a slot, then for its turn or the end of a pause
        self._reserved: tuple[float, float] | None = None  # start (ms) reserved for the first of _line, and its cost
        self._line_timer: TimerFuture | None = None  # for the first of _line
        self._paused_until_ms = 0.0  # without a limiter; a limiter keeps its own pause
        # With a rate limit, keep to the host's own as well: calls queued there would start without waiting their turn.
        most = [number for number in (concurrency, host.max_calls if limiter is not None else None) if number]
        self._concurrency = min(most, default=0)
        self._running = 0  # counted calls: submitted, neither answered nor given up; 0 without a limit
        self._waiting: deque[BatchCall] = deque()  # for a slot, or for the end of a pause
        self._waiting_timer: TimerFuture | None = None  # for the end of a pause
        self._max_batch_size = options.batch_size if host.is_batch else 0
        self._linger_ms = options.linger_ms or 0
        self._nothing_follows = nothing_follows
        self._batch: list[RecordCall] = []
        self._batch_timer: TimerFuture | None = None
        self._is_flush_sent = False
        # Most operators have no limits and no batches: their calls go straight to the host.
        is_direct = limiter is None and concurrency is None and not host.is_batch
        self.start: Callable[[RecordCall], None] = host.submit if is_direct else self._start

    @property
    def is_direct(self) -> bool:
        """Whether started calls go straight to the host."""
        return self.start == self._host.submit

    def pause(self, until_ms: float) -> None:
        """Start no call before `until_ms`; with a limiter, no call of its scope."""
        if self._limiter is not None:
            self._limiter.pause(until_ms)
        else:
            self._paused_until_ms = max(self._paused_until_ms, until_ms)
        self.start = self._start

    def ended(self, call: Call) -> None:
        """Release the slot of a call that was answered or given up, and start those that wait for it."""
        if call.is_counted:
            call.is_counted = False
            self._running -= 1
            self._submit_waiting(0)
            if self._line and self._line_timer is None:
                self._advance_line(0)

    def give_up(self, call: RecordCall) -> None:
        """Give up a call, wherever it is: its answer is no longer needed."""
        batch = call.batch
        if batch is None:
            self._host.cancel(call)
            self.ended(call)
            return
        batch.wanted -= 1
        if batch.wanted == 0:
            self._host.cancel(batch)
            self.ended(batch)

    def close(self) -> None:
        """Drop all waiting calls, so that a slot released later starts none of them."""
        self._line.clear()
        self._waiting.clear()
        for timer in (self._line_timer, self._waiting_timer, self._batch_timer):
            if timer is not None:
                timer.cancel()

    def submit_again(self, batch: BatchCall) -> None:
        """Queue a batch that the host returned without starting it."""
        batch.is_returned = False
        if batch.is_counted:
            batch.is_counted = False
            self._running -= 1
        self._waiting.appendleft(batch)
        self._submit_waiting(0)

    def flush(self) -> None:
        """Send the batch as it is: no more calls are coming to fill it."""
        self._is_flush_sent = False
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        members = [call for call in self._batch if not call.is_done]
        self._batch = []
        if members:
            batch = BatchCall(members, self._box)
            for member in members:
                member.batch = batch
            self._waiting.append(batch)
            self._submit_waiting(0)

    def _start(self, call: RecordCall) -> None:
        self._line.append(call)
        if self._line_timer is None:
            self._advance_line(0)

    def _advance_line(self, due_ms: int) -> None:
        """Start the calls whose turn has come, and set a timer for the next turn."""
        self._line_timer = None
        now_ms = max(due_ms, self._timers.current_processing_time())
        line = self._line
        while line:
            call = line[0]
            if not call.is_done:
                # Slot first: a turn taken early and used late would let too many calls start at once.
                if self._is_full():
                    return
                start_ms = self._turn_of(call, now_ms)
                if start_ms > now_ms:
                    self._line_timer = self._timers.register_timer(math.ceil(start_ms), self._advance_line)
                    return
                self._reserved = None
                self._gather(call)
            line.popleft()
        if self._batch and self._nothing_follows():
            self.flush()

    def _turn_of(self, call: RecordCall, now_ms: float) -> float:
        limiter = self._limiter
        if limiter is None or self._limit is None:
            return self._paused_until_ms
        cost = self._limit.cost_of(call.value)
        reserved = self._reserved
        # Reserve anew if a pause voided the reservation, or a cheaper call made it and left the line.
        if reserved is None or limiter.ready_at(reserved[0]) > reserved[0] or cost > reserved[1]:
            reserved = self._reserved = limiter.reserve(now_ms, cost), cost
        return reserved[0]

    def _gather(self, call: RecordCall) -> None:
        if not self._max_batch_size:
            self._submit(call)
            return
        self._batch.append(call)
        if len(self._batch) >= self._max_batch_size:
            self.flush()
        elif self._linger_ms > 0:
            if self._batch_timer is None:
                flush_ms = self._timers.current_processing_time() + self._linger_ms
                self._batch_timer = self._timers.register_timer(flush_ms, self._flush_lingering)
        elif not self._is_flush_sent:
            self._is_flush_sent = True
            try:
                self._executor.execute(self.flush, "send the batch")
            except RejectedExecutionError:
                return  # the mailbox is closed: the state will be replayed

    def _flush_lingering(self, _: int) -> None:
        self._batch_timer = None
        self.flush()

    def _is_full(self) -> bool:
        """Whether the first call in line must wait for another to end."""
        if self._max_batch_size:
            return self._limiter is not None and bool(self._waiting)
        return not self._has_room()

    def _has_room(self) -> bool:
        return not self._concurrency or self._running < self._concurrency

    def _submit_waiting(self, due_ms: int) -> None:
        """Submit batches while there are slots and no pause."""
        waiting = self._waiting
        while waiting and self._has_room():
            batch = waiting[0]
            if batch.wanted:
                now_ms = max(due_ms, self._timers.current_processing_time())
                ready_ms = self._paused_until_ms if self._limiter is None else self._limiter.ready_at(now_ms)
                if ready_ms > now_ms:
                    if self._waiting_timer is None:
                        self._waiting_timer = self._timers.register_timer(math.ceil(ready_ms), self._pause_is_over)
                    return
                self._submit(batch)
            waiting.popleft()

    def _pause_is_over(self, due_ms: int) -> None:
        self._waiting_timer = None
        self._submit_waiting(due_ms)
        if self._line and self._line_timer is None:
            self._advance_line(due_ms)

    def _submit(self, call: Call) -> None:
        if self._concurrency:
            call.is_counted = True
            self._running += 1
        self._host.submit(call)
