"""Every numeric option refuses a text by name: `timeout="10"` comes from a configuration file or an environment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
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

from .calls.harness import make_host, wait_in_chunks


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


GIVEN: dict[str, Any] = {"dedupe_by": str, "remember": 1}
PARTS: dict[str, Any] = {"mailbox_executor": None, "processing_time_service": None, "output": None}
SOURCE: Any = None
CALLS: dict[Callable[..., Any], Callable[..., object]] = {
    AsyncWaitOperator: partial(AsyncWaitOperator, InBatches(), timeout_ms=1, **GIVEN, **PARTS),
    async_wait_operator: partial(async_wait_operator, InBatches(), timeout_ms=1, **GIVEN),
    ordered_wait: partial(ordered_wait, [], InBatches(), timeout=1, **GIVEN),
    unordered_wait: partial(unordered_wait, [], InBatches(), timeout=1, **GIVEN),
    wait_in_chunks: partial(wait_in_chunks, [], str, AsyncOptions(timeout_ms=1)),
    make_host: partial(make_host, str),
    RateLimit: partial(RateLimit, calls_per_s=1),
    RetryStrategy.fixed_delay: partial(RetryStrategy.fixed_delay, max_attempts=1, delay_ms=1),
    RetryStrategy.exponential_backoff: partial(
        RetryStrategy.exponential_backoff, max_attempts=1, initial_delay_ms=1, max_delay_ms=1, multiplier=1
    ),
    RetryAfter: RetryAfter,
    StreamTask: partial(StreamTask, IterableInput([]), [], print),
    SourceStreamTask: partial(SourceStreamTask, SOURCE, [], print),
    CheckpointStorage: partial(CheckpointStorage, "folder"),
    QueueInput: QueueInput,
}
OPTIONS = [(function, name) for function in CALLS for name in numbers_of(function)]


@pytest.mark.parametrize(("function", "name"), OPTIONS, ids=lambda each: getattr(each, "__name__", each))
def test_what_is_no_number_is_refused_by_name(function: Callable[..., Any], name: str) -> None:
    for value in (True, [1]) if function is RetryAfter else ("10", True, [1]):  # RetryAfter takes a header's text
        with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}")):
            CALLS[function](**{name: value})


def test_the_numeric_options_are_found_in_the_signatures() -> None:
    """The test above is of no use without them."""
    found = {name for _, name in OPTIONS}

    assert {"timeout", "timeout_ms", "capacity", "concurrency", "remember_ms", "linger_ms", "calls_per_s"} <= found


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("capacity", 0, "a whole number of 1 or more"),
        ("capacity", 1.5, "a whole number of 1 or more"),
        ("remember_ms", 0, "a number above 0"),
        ("timeout_ms", float("nan"), "a number of 0 or more"),
    ],
)
def test_a_refusal_says_what_would_be_possible(name: str, value: float, bound: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value}; it must be {bound}$"):
        AsyncOptions(**{"timeout_ms": 1, **GIVEN, name: value})
