"""Handling of a record whose call has failed for good. Mailbox thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.call_path import RecordCall
from pipeline.streaming.calls.functions import as_results
from pipeline.streaming.errors import AsyncOperatorError, CapturedError
from pipeline.streaming.options import AsyncOptions


class ErrorPolicy:
    """Applies `on_error` and `dead_letter` of an operator."""

    def __init__(self, operator: str, options: AsyncOptions, metrics: CallMetrics) -> None:
        self._operator = operator
        self._on_error = options.on_error
        self._dead_letter = options.dead_letter
        self._metrics = metrics

    def results_of(self, call: RecordCall, error: BaseException) -> Sequence[Any]:
        """Count the failed record, and return the results to emit for it.

        Raises:
            AsyncOperatorError: `error`, or an error of the user's handler, fails the task.
        """
        if self._on_error == "fail":
            raise AsyncOperatorError(self._operator, call.value, error, call.attempts) from error
        if self._on_error == "drop":
            self._metrics.dropped += 1
            return ()
        self._metrics.captured += 1
        captured = CapturedError.of(call.value, error, call.attempts, call.taken_ns)
        try:
            if callable(self._on_error):
                return as_results(self._on_error(captured))
            if self._dead_letter is None:
                return (captured,)
            self._dead_letter(captured)
        except Exception as raised:
            raise AsyncOperatorError(self._operator, call.value, raised, call.attempts) from raised
        return ()
