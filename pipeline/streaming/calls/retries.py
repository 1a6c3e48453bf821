"""Which outcomes of an operator's calls lead to another call, and the calls that wait for it. Mailbox thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.mailbox import ProcessingTimeService
from pipeline.streaming.calls.record_call import RecordCall
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.errors import RetryAfter


class Retries:
    """Calls `start_again` with each call whose back-off is over.

    `strategy`: None if no outcome but a RetryAfter leads to another call.
    """

    def __init__(
        self,
        strategy: RetryStrategy | None,
        timers: ProcessingTimeService,
        start_again: Callable[[RecordCall], None],
    ) -> None:
        self.are_enabled = strategy is not None  # never changes
        self._strategy = strategy
        self._timers = timers
        self._start_again = start_again
        self._waiting: dict[RecordCall, None] = {}  # in order of failure
        self._is_ending = False  # no more retries

    def wants_another(self, call: RecordCall, results: Sequence[Any], error: BaseException | None) -> bool:
        """Whether to make the record's call again after this outcome of an attempt."""
        strategy = self._strategy
        if isinstance(error, RetryAfter):
            return True
        if strategy is None or self._is_ending or not strategy.can_retry(call.attempts):
            return False
        return strategy.retries_error(error) if error is not None else strategy.retries_result(results)

    def has_outcome(self, call: RecordCall) -> bool:
        """Whether an answer that ends the record has arrived; one that leads to another attempt does not."""
        if call.batch is not None:
            return call.batch.ended_ns != 0
        if not call.ended_ns:
            return False
        results = call.results if isinstance(call.results, list) else (call.results,)
        return not self.wants_another(call, results, call.error)

    def wait(self, call: RecordCall) -> None:
        """Start the call again after the strategy's back-off."""
        assert self._strategy is not None
        due_ms = self._timers.current_processing_time() + self._strategy.backoff_ms(call.attempts)
        self._waiting[call] = None
        call.retry_timer = self._timers.register_timer(due_ms, lambda _: self._due(call))

    def are_waiting(self) -> bool:
        return bool(self._waiting)

    def give_up(self, call: RecordCall) -> bool:
        """Make no other attempt; returns whether the call waited for one."""
        if call not in self._waiting:
            return False
        del self._waiting[call]
        if call.retry_timer is not None:
            call.retry_timer.cancel()
        return True

    def end(self) -> None:
        """Make the waiting retries at once, and none after them."""
        self._is_ending = True
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            if call.retry_timer is not None:
                call.retry_timer.cancel()
            self._make(call)

    def _due(self, call: RecordCall) -> None:
        if call in self._waiting:
            del self._waiting[call]
            self._make(call)

    def _make(self, call: RecordCall) -> None:
        call.retry_timer = None
        call.attempts += 1
        self._start_again(call)
