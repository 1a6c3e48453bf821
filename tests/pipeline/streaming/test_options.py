"""The options of Async I/O: declared once, checked where they are made, shown by every function that takes them."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest

from pipeline.streaming import (
    AsyncOptions,
    AsyncWaitOperator,
    RateLimit,
    RetryStrategy,
    async_wait_operator,
    ordered_wait,
    unordered_wait,
)

FIELDS = {field.name: field for field in fields(AsyncOptions)}
DECIDED = {"combine", "deadline_ms", "output_mode", "read_ahead", "retries_at_end"}
"""What a wait decides itself."""


def options(**given: Any) -> AsyncOptions:
    return AsyncOptions(**{"timeout_ms": 1000, "dedupe_by": str, **given})


def test_each_option_but_the_timeout_has_a_default_and_a_description() -> None:
    assert [name for name, field in FIELDS.items() if field.default is MISSING] == ["timeout_ms"]
    assert [name for name in FIELDS if f"`{name}`" not in str(AsyncOptions.__doc__)] == []


@pytest.mark.parametrize(
    ("function", "required", "decided"),
    [
        (AsyncWaitOperator, "timeout_ms", set()),
        (async_wait_operator, "timeout_ms", set()),
        (ordered_wait, "timeout", DECIDED),
        (unordered_wait, "timeout", DECIDED),
    ],
)
def test_a_signature_shows_each_option_with_its_type_and_default(
    function: Callable[..., Any], required: str, decided: set[str]
) -> None:
    shown = inspect.signature(function).parameters

    assert shown[required].default is inspect.Parameter.empty
    assert not decided & shown.keys()
    for name, hint in get_type_hints(AsyncOptions).items():
        if name in decided | {"timeout_ms"}:
            continue
        assert (shown[name].kind, shown[name].annotation, shown[name].default) == (
            inspect.Parameter.KEYWORD_ONLY,
            hint,
            FIELDS[name].default,
        )


@pytest.mark.parametrize("function", [AsyncWaitOperator, async_wait_operator, ordered_wait, unordered_wait])
def test_an_unknown_name_is_refused_by_name(function: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'capacities'"):
        function([], str, timeout=1, timeout_ms=1, capacities=5)


@pytest.mark.parametrize("name", sorted(DECIDED))
def test_a_wait_refuses_the_options_that_it_decides_itself(name: str) -> None:
    with pytest.raises(TypeError, match=f"ordered_wait.* '{name}'"):
        ordered_wait([], str, timeout=1, **{name: FIELDS[name].default})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_ms", -5),
        ("timeout_ms", None),
        ("deadline_ms", 0),
        ("read_ahead", -1),
        ("output_mode", "sorted"),
        ("on_error", "ignore"),
        ("on_error", None),
        ("concurrency", 0),
        ("pool_size", 0),
        ("max_batch_size", 1.5),
        ("linger_ms", -1),
        ("remember", -1),
        ("remember", None),
        ("remember_ms", float("nan")),
    ],
)
def test_an_option_out_of_its_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        options(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("retry", 3), ("rate_limit", "fast"), ("dead_letter", "log"), ("dedupe_by", "key"), ("combine", 1)],
)
def test_an_option_of_another_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} is {value!r}; give"):
        options(**{name: value})


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"timeout_ms is 0; .* retries"):
        options(timeout_ms=0, retry=RetryStrategy.fixed_delay(1, 10, retry_on_exception=OSError))
    with pytest.raises(ValueError, match='dead_letter needs "capture"'):
        options(on_error="drop", dead_letter=print)
    with pytest.raises(ValueError, match="give dedupe_by"):
        options(remember=1, dedupe_by=None)
    with pytest.raises(ValueError, match="remember_ms is 5, but remember is 0"):
        options(remember_ms=5)


@pytest.mark.parametrize(
    ("given", "calls", "records", "threads"),
    [
        ({}, 100, 100, 32),
        ({"concurrency": 7}, 7, 7, 7),
        ({"capacity": 300}, 300, 300, 32),
        ({"capacity": 300, "concurrency": 7, "pool_size": 3}, 7, 300, 3),
        ({"capacity": 5, "concurrency": 7}, 5, 5, 7),
    ],
)
def test_calls_records_and_threads_follow_from_what_is_given(
    given: dict[str, Any], calls: int, records: int, threads: int
) -> None:
    """A capacity alone bounds the calls too, as it does in Flink."""
    made = options(**given)

    assert (made.most_calls, made.first_records(is_batch=False), made.threads) == (calls, records, threads)


def test_a_concurrency_of_batches_takes_in_the_records_of_that_many() -> None:
    made = options(concurrency=3, max_batch_size=20)

    assert (made.most_calls, made.first_records(is_batch=True)) == (3, 60)
    assert options(concurrency=3).first_records(is_batch=True) == 300


def test_options_travel() -> None:
    given = options(rate_limit=RateLimit(5), retry=RetryStrategy.fixed_delay(2, 10, retry_on_exception=OSError))

    assert pickle.loads(pickle.dumps(given)) == given
    assert AsyncOptions(**given.arguments()) == given
