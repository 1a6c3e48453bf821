"""Wrappers around users' functions: of the same kind, with the same hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.streaming import AsyncFunction, ordered_wait
from pipeline.streaming.function_wrappers import CallWrapper, Converted, Wrapped

from ...kit import TIMEOUT_S


class Hooks:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def open(self) -> None:
        self.seen.append("open")

    def close(self) -> None:
        self.seen.append("close")

    def timeout(self, value: int) -> int:
        return -value

    def own_retries(self) -> int:
        return 7


class One(Hooks, AsyncFunction[int, int]):
    async def async_invoke(self, value: int) -> int:
        self.seen.append(value)
        return value


class Many(Hooks, AsyncFunction[int, int]):
    async def async_invoke_batch(self, values: list[int]) -> list[Any]:
        self.seen.append(values)
        return [ValueError("odd") if value % 2 else value for value in values]


class Blocking(Hooks):
    def __call__(self, value: int) -> int:
        self.seen.append(value)
        return value


def as_text(returned: Any) -> list[str]:
    if returned == 4:
        raise TypeError("four")
    return [str(returned)]


@pytest.mark.parametrize(
    ("make", "calls", "odd", "options"),
    [
        (One, [2, 3, 4], "3", {}),
        (Many, [[2, 3, 4]], "ValueError", {"linger_ms": 60_000}),  # the end of the input sends the batch
        (Blocking, [2, 3, 4], "3", {"pool_size": 1}),
    ],
)
def test_a_wrapper_has_the_hooks_of_its_function_and_converts_what_a_call_returns(
    make: Callable[[], Any], calls: list[Any], odd: str, options: dict[str, Any]
) -> None:
    """An error fails its value alone, in a batch, too."""
    function = make()
    wrapped: Any = Wrapped(Wrapped(function, CallWrapper()), Converted(as_text))

    results = list(ordered_wait([2, 3, 4], wrapped, timeout=TIMEOUT_S, on_error="capture", **options))

    assert [each if isinstance(each, str) else each.error_class for each in results] == ["2", odd, "TypeError"]
    assert function.seen == ["open", *calls, "close"]
    assert (wrapped.timeout(3), wrapped.own_retries()) == (["-3"], 7)


def test_a_wrapper_has_no_timeout_and_no_retries_that_its_function_lacks() -> None:
    wrapped = Wrapped(str, Converted(as_text))

    assert not hasattr(wrapped, "timeout")
    assert not hasattr(wrapped, "own_retries")
    assert list(ordered_wait([2], wrapped, timeout=TIMEOUT_S)) == ["2"]
