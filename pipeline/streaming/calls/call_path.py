"""The path of a call from the engine to its host: concurrency limit, rate limit, batch.

The engine's thread only. A call waits in at most one place at a time: in line for a concurrency slot and its turn at
the rate limit, in a batch that is filling or waits for a slot, or in the host. A call that is late there is dropped
there. During a pause, waiting calls stay where they are. Calls made again, whose timeouts run, go before those that
were not sent yet. Few calls wait in the host, so that those made again get ahead of most.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

from dispatcher.errors import RejectedExecutionError
from dispatcher.util.foreign import is_instance
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.hosts.call_host import AnswerBox, CallHost, HostCall
from pipeline.streaming.calls.limits.turns import RateTurns
from pipeline.streaming.calls.record_call import BatchCall, RecordCall
from pipeline.streaming.calls.thread import CallTimer, CallTimers, EngineMailbox
from pipeline.streaming.errors import RetryAfter
from pipeline.streaming.options import AsyncOptions

_FIRST_PAUSE_MS: Final = 50
"""The least pause after a call's first refusal; each further one doubles it."""
_LONGEST_PAUSE_MS: Final = 5000


@dataclass(frozen=True, slots=True)
class HostSlots:
    """An operator's share of a host: up to `calls` in flight, and `ahead` more that wait in the host.

    `may_wait`: whether a call may wait in the host for its slot, or for the thread of a call that was given up.
    """

    calls: int
    ahead: int
    may_wait: bool

    @classmethod
    def of(cls, host: CallHost, options: AsyncOptions) -> HostSlots:
        calls = options.most_calls if host.max_calls is None else min(options.most_calls, host.max_calls)
        # A call that waits in the host starts the moment another ends. That takes a host that keeps to the number; and
        # such a call would not wait for its turn at the rate, nor in a batch for others.
        keeps_number = calls == host.max_calls and options.rate_limit is None and not host.is_batch
        ahead = options.read_ahead if keeps_number else 0
        return cls(calls, ahead, bool(ahead) or host.keeps_late_calls)

    @property
    def most_turns(self) -> int:
        """How many calls in turn, each of a timeout at most, a call waits for in the host."""
        return max(1, -(-self.ahead // self.calls))


class CallPath:
    """Starts calls when the limits allow it.

    `nothing_follows`: whether no call will begin before another has ended, so that an open batch cannot fill up.
    """

    def __init__(
        self,
        host: CallHost,
        box: AnswerBox,
        mail: EngineMailbox,
        timers: CallTimers,
        options: AsyncOptions,
        nothing_follows: Callable[[], bool],
        metrics: CallMetrics,
        on_sent: Callable[[Sequence[RecordCall]], None],
    ) -> None:
        self._host = host
        self._box = box
        self._mail = mail
        self._timers = timers
        self._turns = RateTurns(host, options.rate_limit)
        self._again: deque[RecordCall] = deque()  # were sent before; go before those of _line
        self._line: deque[RecordCall] = deque()  # wait for a slot, then for their turn or the end of a pause
        self._line_timer: CallTimer | None = None  # for the first in line
        slots = HostSlots.of(host, options)
        self._window = slots.calls + slots.ahead  # calls submitted, neither answered nor given up
        self._running = 0  # of _window; 0 while calls go straight to the host
        self._metrics = metrics
        self._on_sent = on_sent
        self._waiting: deque[BatchCall] = deque()  # for a slot, or for the end of a pause
        self._waiting_timer: CallTimer | None = None  # for the end of a pause
        self._max_batch_size = options.batch_size if host.is_batch else 0
        self._linger_ms = options.linger_ms or 0
        self._nothing_follows = nothing_follows
        self._batch: list[RecordCall] = []
        self._batch_timer: CallTimer | None = None
        self._is_flush_sent = False
        is_simple = not self._turns.are_limited and not host.is_batch
        first_records = options.first_records(host.is_batch) + options.read_ahead
        self.is_direct: bool = is_simple and first_records <= self._window
        """Whether started calls go straight to the host: there are not too many, and no other limits.

        A caller then counts them, and begins their timeouts.
        """
        in_line = self._start_in_window if is_simple else self._start
        self.start: Callable[[Sequence[RecordCall]], None] = host.submit if self.is_direct else in_line
        self._advance = self._fill_window if is_simple else self._advance_line

    def limit(self, under_way: Iterable[RecordCall]) -> None:
        """Let calls wait in line from now on; if they went straight to the host, `under_way` are those there."""
        if self.is_direct:
            self.is_direct = False
            self.start = self._start_in_window
            for call in under_way:
                call.is_counted = True
                self._running += 1

    @property
    def learns(self) -> bool:
        """Whether to report answers that are no RetryAfter, too."""
        return self._turns.learn

    def answered(self, call: RecordCall) -> None:
        """Report an answer, before the call's slot is released to another; a RetryAfter pauses the limit's scope.

        Call `limit` before the first RetryAfter.
        """
        now_ms = self._timers.current_processing_time()
        error = call.error
        if is_instance(error, RetryAfter):
            call.refusals += 1
            delay_ms = error.delay_s * 1000
            if not self._turns.adapts:  # otherwise the rate falls
                delay_ms = max(delay_ms, min(_FIRST_PAUSE_MS * 2.0 ** (call.refusals - 1), _LONGEST_PAUSE_MS))
            self._turns.refused(call, now_ms, delay_ms)
            self.start, self._advance = self._start, self._advance_line
            self._ask_again()
        elif error is None and self._turns.accepted(call, now_ms):
            self._ask_again()

    def resume(self, call: RecordCall) -> None:
        """Start a call that the host has returned."""
        call.is_held = call.was_in_line = True
        self._again.append(call)
        if self._line_timer is None:
            self._advance(0)

    def ended(self, call: HostCall) -> None:
        """Release the slot of a call that was answered or given up, and start those that wait for it."""
        if call.is_counted:
            call.is_counted = False
            self.release(1)

    def release(self, slots: int) -> None:
        """Release the slots of calls that have ended, and start those that wait for them."""
        self._running -= slots
        if self._waiting:
            self._submit_waiting(0)
        if (self._line or self._again) and self._line_timer is None:
            self._advance(0)

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

    def waiting(self) -> int:
        """Attempts begun that were not sent."""
        batched = [member for batch in self._waiting for member in batch.members]
        waiting = (call for calls in (self._again, self._line, self._batch, batched) for call in calls)
        return sum(call.is_waiting and not call.is_done for call in waiting)

    def close(self) -> None:
        """Drop all waiting calls, so that a slot released later starts none of them."""
        for waiting in (self._again, self._line, self._batch, self._waiting):
            waiting.clear()
        for timer in (self._line_timer, self._waiting_timer, self._batch_timer):
            if timer is not None:
                timer.cancel()

    def submit_again(self, batch: BatchCall) -> None:
        """Queue a batch that the host returned without starting it."""
        batch.is_returned = False
        for member in batch.members:
            member.is_held = True
        if batch.is_counted:
            batch.is_counted = False
            self._running -= 1
        self._waiting.appendleft(batch)
        self._submit_waiting(0)

    def flush(self) -> None:
        """Send the batch as it is: no more calls are coming to fill it."""
        self._is_flush_sent = False
        if not self._batch:
            return
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

    def _start(self, calls: Sequence[RecordCall]) -> None:
        self._queue(calls)
        if self._line_timer is None:
            self._advance(0)

    def _start_in_window(self, calls: Sequence[RecordCall]) -> None:
        """Start calls while the window is the only limit: then they are in line only when it is full."""
        room = max(0, self._window - self._running)
        if room:
            self._submit(calls[:room])
        self._queue(calls[room:])

    def _queue(self, calls: Sequence[RecordCall]) -> None:
        for call in calls:
            call.was_in_line = call.is_waiting = True
            (self._line if call.is_first else self._again).append(call)

    def _fill_window(self, _: int) -> None:
        """Start the calls in line that the window has room for, while the window is the only limit."""
        calls: list[RecordCall] = []
        room = self._window - self._running
        while len(calls) < room and (line := self._again or self._line):
            call = line.popleft()
            if not call.is_done:
                calls.append(call)
        if calls:
            self._submit(calls)

    def _advance_line(self, due_ms: int) -> None:
        """Start the calls whose turn has come, and set a timer for the next turn."""
        self._line_timer = None
        now_ms = max(due_ms, self._timers.current_processing_time())
        while line := self._again or self._line:
            call = line[0]
            if not call.is_done:
                # Slot first: a turn taken early and used late would let too many calls start at once.
                if self._is_full():
                    return
                start_ms = self._turns.try_take(call, now_ms)
                if start_ms > now_ms:
                    if len(self._line) + len(self._again) > 1:
                        start_ms += self._turns.group_ms
                    self._line_timer = self._timers.register_timer(math.ceil(start_ms), self._advance_line)
                    return
                self._gather(call)
            line.popleft()
        if self._batch and self._nothing_follows():
            self.flush()

    def _gather(self, call: RecordCall) -> None:
        if not self._max_batch_size:
            self._submit((call,))
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
                self._mail.execute(self.flush, "send the batch")
            except RejectedExecutionError:
                return  # the mailbox is closed: the state will be replayed

    def _flush_lingering(self, _: int) -> None:
        self._batch_timer = None
        self.flush()

    def _is_full(self) -> bool:
        """Whether the first call in line must wait for another to end."""
        if self._max_batch_size:
            return self._turns.are_limited and bool(self._waiting)
        return not self._has_room()

    def _has_room(self) -> bool:
        return self._running < self._window

    def _submit_waiting(self, due_ms: int) -> None:
        """Submit batches while there are slots and no pause."""
        waiting = self._waiting
        while waiting and self._has_room():
            batch = waiting[0]
            if batch.wanted:
                now_ms = max(due_ms, self._timers.current_processing_time())
                ready_ms = self._turns.ready_at(now_ms)
                if ready_ms > now_ms:
                    if self._waiting_timer is None:
                        self._waiting_timer = self._timers.register_timer(math.ceil(ready_ms), self._pause_is_over)
                    return
                self._submit_batch(batch)
            waiting.popleft()

    def _ask_again(self) -> None:
        """The waiting calls may start earlier than their timers say."""
        if self._line_timer is None and self._waiting_timer is None:
            return  # nothing waits for its turn
        for timer in (self._line_timer, self._waiting_timer):
            if timer is not None:
                timer.cancel()
        self._line_timer = None
        self._pause_is_over(0)

    def _pause_is_over(self, due_ms: int) -> None:
        self._waiting_timer = None
        self._submit_waiting(due_ms)
        if (self._line or self._again) and self._line_timer is None:
            self._advance_line(due_ms)

    def _submit(self, calls: Sequence[RecordCall]) -> None:
        for call in calls:
            call.is_counted = True
        self._running += len(calls)
        self._send(calls)
        self._host.submit(calls)

    def _submit_batch(self, batch: BatchCall) -> None:
        batch.is_counted = True
        self._running += 1
        self._send([member for member in batch.members if not member.is_done])
        self._host.submit((batch,))

    def _send(self, calls: Sequence[RecordCall]) -> None:
        """Note that attempts go to the host."""
        now_ns = perf_counter_ns()
        for call in calls:
            self._metrics.calls += not call.is_held  # it counts once, though the host has returned it
            call.is_waiting = False
            call.sent_ns = now_ns
        self._on_sent(calls)
