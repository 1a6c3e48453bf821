"""Checks every result of the user's function against the schema, inside the call that returned it.

A result that does not fit therefore fails its own call only. Like any other error it is retried, dropped or captured,
or fails the task, as the options say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from dispatcher.util.foreign import is_instance
from pipeline.spark.async_io.structs import Check
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.calls.functions import AnyFunction, as_results
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.errors import CapturedError
from pipeline.streaming.function_wrappers import Converted, Wrapped
from pipeline.streaming.options import AsyncOptions

_ONE_RESULT: Final = frozenset((dict, tuple))
"""The usual classes of a result that is no list of results: they need no closer look."""

Checked = Callable[[Any], list[Any]]
"""Takes what a function returned and gives the checked results."""


class _JudgedResults(list[Any]):
    """Checked results, with the verdict of `retry_on_result` on the results as the user returned them."""

    wants_retry = False


def checked_function(
    function: AnyFunction[Any, Any], check: Check, retry: RetryStrategy | None, *, none_is_row: bool = False
) -> Any:
    """`function` with its hooks, of the same kind, but a call raises ResultSchemaError if a result does not fit.

    If `retry` has a `retry_on_result`, use the strategy of `checked_options`. With `none_is_row`, None is a result.
    """
    checked = _checked(check, retry, _as_results if none_is_row else as_results)
    return Wrapped(function, Converted(checked))


def checked_options(options: AsyncOptions, check: Check) -> AsyncOptions:
    """The options for a checked function. The rows that an `on_error` function returns are also checked."""
    retry, on_error = options.retry, options.on_error
    if retry is not None and retry.retry_on_result is not None:
        retry = dataclasses.replace(
            retry, retry_on_result=_wants_retry, retry_on_exception=_or_unfit(retry.retries_error)
        )
    if callable(on_error):
        to_rows, checked = on_error, _checked(check, None, as_results)

        def checked_on_error(captured: CapturedError) -> list[Any]:
            return checked(to_rows(captured))

        on_error = checked_on_error
    return dataclasses.replace(options, retry=retry, on_error=on_error)


def _as_results(returned: Any) -> Sequence[Any]:
    return (None,) if returned is None else as_results(returned)


def _checked(check: Check, retry: RetryStrategy | None, results_of: Callable[[Any], Sequence[Any]]) -> Checked:
    def check_results(returned: Any) -> list[Any]:
        if type(returned) in _ONE_RESULT:
            return [check(returned)]
        return [check(result) for result in results_of(returned)]

    if retry is None or retry.retry_on_result is None:
        return check_results
    strategy = retry

    def check_and_judge(returned: Any) -> list[Any]:
        # The predicate judges the results as returned, which need not fit if it asks for another attempt.
        wants_retry = strategy.retries_result(results_of(returned))
        try:
            results = _JudgedResults(check_results(returned))
        except ResultSchemaError as unfit:
            unfit.wants_retry = wants_retry
            raise
        results.wants_retry = wants_retry
        return results

    return check_and_judge


def _wants_retry(results: Sequence[Any]) -> bool:
    return isinstance(results, _JudgedResults) and results.wants_retry


def _or_unfit(retries_error: Callable[[BaseException], bool]) -> Callable[[BaseException], bool]:
    return lambda error: (is_instance(error, ResultSchemaError) and error.wants_retry) or retries_error(error)
