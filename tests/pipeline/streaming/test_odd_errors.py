"""Errors that answer no question as errors do: on_error="capture" makes each a captured row, at every door."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.lookup import FunctionTable
from pipeline.streaming import AsyncFunction, CapturedError, RetryStrategy, ordered_wait

from ...kit import TIMEOUT_S
from ..lookup.fakes import LookupFunction


class NoText(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class TextOfAnotherType(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Silent(type):
    def __getattribute__(cls, name: str) -> Any:
        raise LookupError(name)


class ClassHasNoName(Exception, metaclass=Silent): ...


class NoClass(Exception):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise LookupError("no class")


class NoAttribute(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)


class ModuleOfAnotherType(Exception): ...


ModuleOfAnotherType.__module__ = 5  # type: ignore[assignment]

ERRORS: dict[str, Callable[[], BaseException]] = {
    "no text": NoText,
    "text of another type": TextOfAnotherType,
    "class has no name": lambda: type.__call__(ClassHasNoName),
    "no class": NoClass,
    "no attribute": NoAttribute,
    "module of another type": ModuleOfAnotherType,
    "group": lambda: ExceptionGroup("several", [NoText()]),
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
}


async def on_loop(name: str) -> Any:
    raise ERRORS[name]()


def on_threads(name: str) -> Any:
    raise ERRORS[name]()


class InBatch(AsyncFunction[str, Any]):
    async def async_invoke_batch(self, names: list[str]) -> list[Any]:
        raise ERRORS[names[0]]()


class InPlaceOfResults(AsyncFunction[str, Any]):
    async def async_invoke_batch(self, names: list[str]) -> list[Any]:
        return [ERRORS[name]() for name in names]


class InTimeout(AsyncFunction[str, Any]):
    async def async_invoke(self, name: str) -> Any:
        await asyncio.get_running_loop().create_future()

    def timeout(self, name: str) -> Any:
        raise ERRORS[name]()


FUNCTIONS: dict[str, Any] = {
    "loop": on_loop,
    "threads": on_threads,
    "batch": InBatch(),
    "in place of results": InPlaceOfResults(),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_call_s_error_is_captured_and_the_next_call_is_made(function: Any, name: str) -> None:
    retry = RetryStrategy.fixed_delay(1, 1, retry_on_exception=OSError)

    found = list(ordered_wait([name] * 2, function, timeout=TIMEOUT_S, on_error="capture", retry=retry, concurrency=1))

    assert [(type(captured), captured.input) for captured in found] == [(CapturedError, name)] * 2
    assert "Timeout" not in found[0].error_class
    if "Exit" in name or name in ("KeyboardInterrupt", "CancelledError"):
        assert type(found[0].error) is type(ERRORS[name]())


@pytest.mark.parametrize("name", ERRORS)
def test_a_timeout_s_error_is_captured(name: str) -> None:
    (captured,) = ordered_wait([name], InTimeout(), timeout=0.001, on_error="capture")

    assert isinstance(captured, CapturedError)
    assert "Timeout" not in captured.error_class


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("threads", name) for name in ERRORS),
        *zip(itertools.cycle(["loop", "batch", "in place of results"]), ERRORS, strict=False),
    ],
)
def test_a_lookup_s_error_is_captured(kind: str, name: str) -> None:
    """A StopIteration from a thread was never answered, because no future takes one."""
    table = FunctionTable(FUNCTIONS[kind], key="name string", columns="found string")
    lookup = LookupFunction(table, "name", input_columns=["name"])

    (captured,) = ordered_wait([(name,)], lookup, timeout=TIMEOUT_S, on_error="capture")

    assert isinstance(captured, CapturedError)
    assert "Timeout" not in captured.error_class
