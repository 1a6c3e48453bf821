from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.streaming import AsyncFunction
from pipeline.streaming.calls.functions import is_batch_function, is_coroutine_function
from pipeline.streaming.function_wrappers import CallWrapper, Converted, Wrapped


class Hooks:
    def __init__(self) -> None:
        self.seen: list[str] = []

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
        return value


class Many(Hooks, AsyncFunction[int, int]):
    async def async_invoke_batch(self, values: list[int]) -> list[Any]:
        return [ValueError("odd") if value % 2 else value for value in values]


class Blocking(Hooks):
    def __call__(self, value: int) -> int:
        return value


async def plain(value: int) -> int:
    return value


def as_text(returned: Any) -> list[str]:
    if returned == 4:
        raise TypeError("four")
    return [str(returned)]


def call(function: Any, value: int) -> Any:
    """One call, in the form of the function."""
    if is_batch_function(function):
        return asyncio.run(function.async_invoke_batch([value]))[0]
    return asyncio.run(function.async_invoke(value)) if is_coroutine_function(function) else function(value)


@pytest.mark.parametrize("make", [One, Many, Blocking, lambda: plain], ids=["coroutine", "batch", "blocking", "plain"])
def test_the_wrapper_is_of_the_same_kind_and_converts_what_a_call_returns(make: Callable[[], Any]) -> None:
    function = make()
    wrapped = Wrapped(Wrapped(function, CallWrapper()), Converted(as_text))

    assert is_batch_function(wrapped) == is_batch_function(function)
    assert is_coroutine_function(wrapped) == is_coroutine_function(function)
    assert call(wrapped, 2) == ["2"]


@pytest.mark.parametrize("make", [One, Many, Blocking])
def test_the_wrapper_has_the_hooks_of_the_function(make: Callable[[], Any]) -> None:
    function = make()
    wrapped: Any = Wrapped(function, Converted(as_text))

    wrapped.open()
    wrapped.close()

    assert function.seen == ["open", "close"]
    assert wrapped.timeout(3) == ["-3"]
    assert wrapped.own_retries() == 7


def test_the_wrapper_has_no_timeout_and_no_retries_that_the_function_lacks() -> None:
    wrapped = Wrapped(plain, Converted(as_text))

    assert not hasattr(wrapped, "timeout")
    assert not hasattr(wrapped, "own_retries")


def test_in_a_batch_an_error_fails_its_value_alone() -> None:
    wrapped: Any = Wrapped(Many(), Converted(as_text))

    good, failed, unfit = asyncio.run(wrapped.async_invoke_batch([2, 3, 4]))

    assert good == ["2"]
    assert isinstance(failed, ValueError)
    assert isinstance(unfit, TypeError)
