"""Every numeric option refuses a text by name: `timeout="10"` comes from a configuration file or an environment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from pipeline.streaming import (
    AsyncFunction,
    AsyncOptions,
    AsyncWaitOperator,
    CheckpointStorage,
    IterableInput,
    QueueInput,
    RateLimit,
    RetryAfter,
    RetryStrategy,
    SourceStreamTask,
    StreamTask,
    async_wait_operator,
    ordered_wait,
    unordered_wait,
)
from pipeline.streaming.number_checks import require_number

from .calls.harness import make_host, wait_in_chunks

GIVEN: dict[str, Any] = {"dedupe_by": str, "remember": 1}


class InBatches(AsyncFunction[int, int]):
    """So that the options of the batch form are possible."""

    async def async_invoke_batch(self, values: list[int]) -> list[list[int]]:
        return [[value] for value in values]


def numbers_of(function: Callable[..., Any]) -> list[str]:
    """The parameters that are numbers, by the types that the signature shows."""
    parameters = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if is_number(parameter.annotation)]


def is_number(hint: Any) -> bool:
    kinds = hint.split(" | ") if isinstance(hint, str) else get_args(hint) or (hint,)
    return any(kind in (int, float, "int", "float") for kind in kinds)


def operator(**options: Any) -> object:
    parts: dict[str, Any] = {"mailbox_executor": None, "processing_time_service": None, "output": None}
    return AsyncWaitOperator(InBatches(), **{"timeout_ms": 1, **GIVEN, **parts, **options})


def factory(**options: Any) -> object:
    return async_wait_operator(InBatches(), **{"timeout_ms": 1, **GIVEN, **options})


def ordered(**options: Any) -> object:
    return ordered_wait([], InBatches(), **{"timeout": 1, **GIVEN, **options})


def unordered(**options: Any) -> object:
    return unordered_wait([], InBatches(), **{"timeout": 1, **GIVEN, **options})


def chunks(**options: Any) -> object:
    return wait_in_chunks([], str, AsyncOptions(timeout_ms=1), **options)


def host(**options: Any) -> object:
    return make_host(str, **options)


def limit(**options: Any) -> object:
    return RateLimit(**{"calls_per_s": 1, **options})


def fixed_delay(**options: Any) -> object:
    return RetryStrategy.fixed_delay(**{"max_attempts": 1, "delay_ms": 1, **options})


def backoff(**options: Any) -> object:
    given = {"max_attempts": 1, "initial_delay_ms": 1, "max_delay_ms": 1, "multiplier": 1}
    return RetryStrategy.exponential_backoff(**{**given, **options})


def task(**options: Any) -> object:
    return StreamTask(IterableInput([]), [], print, **options)


def source_task(**options: Any) -> object:
    source: Any = None
    return SourceStreamTask(source, [], print, **options)


def storage(**options: Any) -> object:
    return CheckpointStorage("folder", **options)


CALLS: dict[Callable[..., object], Callable[..., Any]] = {
    operator: AsyncWaitOperator,
    factory: async_wait_operator,
    ordered: ordered_wait,
    unordered: unordered_wait,
    chunks: wait_in_chunks,
    host: make_host,
    limit: RateLimit,
    fixed_delay: RetryStrategy.fixed_delay,
    backoff: RetryStrategy.exponential_backoff,
    RetryAfter: RetryAfter,
    task: StreamTask,
    source_task: SourceStreamTask,
    storage: CheckpointStorage,
    QueueInput: QueueInput,
}
OPTIONS = [(call, name) for call, function in CALLS.items() for name in numbers_of(function)]


@pytest.mark.parametrize(("call", "name"), OPTIONS, ids=lambda each: getattr(each, "__name__", each))
def test_what_is_no_number_is_refused_by_name(call: Callable[..., object], name: str) -> None:
    for value in (True, [1]) if call is RetryAfter else ("10", True, [1]):  # RetryAfter takes the text of a header
        with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}")):
            call(**{name: value})


def test_the_numeric_options_are_found_in_the_signatures() -> None:
    """The test above is of no use without them."""
    found = {name for _, name in OPTIONS}

    assert {"timeout", "timeout_ms", "capacity", "concurrency", "remember_ms", "linger_ms", "calls_per_s"} <= found


@pytest.mark.parametrize(
    ("value", "bounds", "reason"),
    [
        (0, {"least": 1, "whole": True}, "size is 0; it must be a whole number of 1 or more"),
        (1.5, {"least": 1, "whole": True}, "size is 1.5; it must be a whole number of 1 or more"),
        (0, {"above": 0}, "size is 0; it must be a number above 0"),
        (float("nan"), {"least": 0}, "size is nan; it must be a number of 0 or more"),
    ],
)
def test_a_refusal_says_what_would_be_possible(value: float, bounds: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=f"^{reason}$"):
        require_number("size", value, **bounds, error=TypeError)


def test_a_number_within_its_bounds_passes() -> None:
    require_number("size", 1, least=1, whole=True)
    require_number("size", 0.5, above=0)
