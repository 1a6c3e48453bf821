"""The user's function and the schema of its results: every result is checked where it was returned.

So a result that does not fit is the error of that call, like any other: it is retried, dropped, captured or fails the
task as the settings say, and it costs only its own row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.spark.async_io.result_values import Check
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.calls.functions import (
    AnyFunction,
    as_results,
    check_batch_results,
    is_batch_function,
    is_coroutine_function,
)
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.errors import CapturedError
from pipeline.streaming.options import AsyncOptions

Checked = Callable[[Any], list[Any]]
"""Takes what a function has returned, gives its results as the schema's check leaves them."""


class _ResultsToJudge(list[Any]):
    """Checked results, with what `retry_on_result` has said to those that the user returned."""

    wants_retry = False


def checked_function(function: AnyFunction[Any, Any], check: Check, retry: RetryStrategy | None) -> Any:
    """`function` with its hooks, of the same kind; its results fit the schema or its call raises ResultSchemaError.

    With a `retry_on_result`, the strategy of `checked_options` is to be used with it.
    """
    checked = _checked(check, retry)
    return (_CheckedCoroutine if is_coroutine_function(function) else _CheckedBlocking)(function, checked)


def checked_options(options: AsyncOptions, check: Check) -> AsyncOptions:
    """The options that go with a checked function: the rows of an `on_error` function are checked, too."""
    retry, on_error = options.retry, options.on_error
    if retry is not None and retry.retry_on_result is not None:
        retry = dataclasses.replace(
            retry, retry_on_result=_wants_retry, retry_on_exception=_or_unfit(retry.retries_error)
        )
    if callable(on_error):
        to_rows, checked = on_error, _checked(check, None)

        def checked_on_error(captured: CapturedError) -> list[Any]:
            return checked(to_rows(captured))

        on_error = checked_on_error
    return dataclasses.replace(options, retry=retry, on_error=on_error)


def _checked(check: Check, retry: RetryStrategy | None) -> Checked:
    def check_results(returned: Any) -> list[Any]:
        return [check(result) for result in as_results(returned)]

    if retry is None or retry.retry_on_result is None:
        return check_results
    strategy = retry

    def check_and_judge(returned: Any) -> list[Any]:
        # The predicate is about what the user returned, which need not fit if it asks for another attempt.
        wants_retry = strategy.retries_result(as_results(returned))
        try:
            results = _ResultsToJudge(check_results(returned))
        except ResultSchemaError as unfit:
            unfit.wants_retry = wants_retry
            raise
        results.wants_retry = wants_retry
        return results

    return check_and_judge


def _wants_retry(results: Sequence[Any]) -> bool:
    return isinstance(results, _ResultsToJudge) and results.wants_retry


def _or_unfit(retries_error: Callable[[BaseException], bool]) -> Callable[[BaseException], bool]:
    return lambda error: (isinstance(error, ResultSchemaError) and error.wants_retry) or retries_error(error)


class _CheckedFunction:
    """Hands through the hooks that the function has, and only those."""

    def __init__(self, function: Any, checked: Checked) -> None:
        for name in ("open", "close"):
            if callable(hook := getattr(function, name, None)):
                setattr(self, name, hook)
        if callable(hook := getattr(function, "timeout", None)):
            timeout = hook
            self.timeout = lambda value: checked(timeout(value))


class _CheckedCoroutine(_CheckedFunction):
    def __init__(self, function: Any, checked: Checked) -> None:
        super().__init__(function, checked)
        if is_batch_function(function):
            invoke_batch = function.async_invoke_batch

            async def async_invoke_batch(values: list[Any]) -> list[Any]:
                entries = check_batch_results(await invoke_batch(values), len(values))
                return [_checked_entry(entry, checked) for entry in entries]

            self.async_invoke_batch = async_invoke_batch
        else:
            invoke = getattr(function, "async_invoke", function)

            async def async_invoke(value: Any) -> list[Any]:
                return checked(await invoke(value))

            self.async_invoke = async_invoke


class _CheckedBlocking(_CheckedFunction):
    def __init__(self, function: Any, checked: Checked) -> None:
        super().__init__(function, checked)
        self._function = function
        self._checked = checked

    def __call__(self, value: Any) -> list[Any]:
        return self._checked(self._function(value))


def _checked_entry(entry: Any, checked: Checked) -> Any:
    if isinstance(entry, BaseException):
        return entry
    try:
        return checked(entry)
    except Exception as error:  # fails this value alone
        return error
