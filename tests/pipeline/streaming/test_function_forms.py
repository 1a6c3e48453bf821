"""The kinds of functions: those that yield their results, and those that are refused before anything runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel

from pipeline.lookup import FunctionTable
from pipeline.streaming import (
    AsyncFunction,
    AsyncOperatorError,
    AsyncOptions,
    CapturedError,
    RetryAfter,
    RetryStrategy,
    SqliteResults,
    ordered_wait,
    unordered_wait,
)

from ...kit import TIMEOUT_S

if TYPE_CHECKING:
    import collections.abc as of_checkers


Numbers = Annotated[Iterator[int], "several"]


# --- functions that yield: n gives n results


def upto(number: int) -> Iterator[int]:
    yield from range(number)


def upto_generator(number: int) -> Generator[int, None, None]:
    yield from range(number)


def upto_iterable(number: int) -> Iterable[int]:
    return range(number)


def upto_alias(number: int) -> Numbers:
    yield from range(number)


def upto_for_checkers(number: int) -> of_checkers.Iterator[int]:
    """Its return type is imported for type checkers only."""
    yield from range(number)


async def upto_async(number: int) -> AsyncIterator[int]:
    for each in range(number):
        await asyncio.sleep(0)
        yield each


async def upto_async_generator(number: int) -> AsyncGenerator[int, None]:
    async for each in upto_async(number):
        yield each


def upto_passed_on(number: int) -> AsyncIterator[int]:
    return upto_async(number)


async def upto_returned(number: int) -> Iterator[int]:
    return iter(range(number))


async def upto_of(first: int, number: int) -> AsyncIterator[int]:
    for each in range(first, number):
        yield each


class Upto:
    def __call__(self, number: int) -> Iterator[int]:
        yield from range(number)

    def by_method(self, number: int) -> Iterator[int]:
        yield from range(number)


class UptoMethod(AsyncFunction[int, int]):
    async def async_invoke(self, number: int) -> AsyncIterator[int]:
        for each in range(number):
            yield each


class UptoBatch(AsyncFunction[int, int]):
    async def async_invoke_batch(self, numbers: list[int]) -> AsyncIterator[list[int]]:
        for number in numbers:
            yield list(range(number))


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


YIELDING = {
    "generator": upto,
    "Generator": upto_generator,
    "iterable that is no generator": upto_iterable,
    "Annotated": upto_alias,
    "type for checkers only": upto_for_checkers,
    "async generator": upto_async,
    "AsyncGenerator": upto_async_generator,
    "an async generator passed on": upto_passed_on,
    "coroutine that returns an iterator": upto_returned,
    "partial": functools.partial(upto_of, 0),
    "callable object": Upto(),
    "bound method": Upto().by_method,
    "method": UptoMethod(),
    "batch": UptoBatch(),
    "decorated": logged(upto),
    "decorated async": logged(upto_async),
}


@pytest.mark.parametrize("function", YIELDING.values(), ids=YIELDING.keys())
def test_each_yield_is_a_result(function: Any) -> None:
    assert list(ordered_wait([2, 0, 3], function, timeout=TIMEOUT_S)) == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("function", [upto, upto_async, UptoBatch()], ids=["threads", "loop", "batch"])
def test_unordered_results_of_a_call_stay_together(function: Any) -> None:
    found = list(unordered_wait([2, 0, 3], function, timeout=TIMEOUT_S))

    assert found in ([0, 1, 0, 1, 2], [0, 1, 2, 0, 1])


@pytest.mark.parametrize("function", [upto, upto_async], ids=["threads", "loop"])
def test_a_cache_keeps_what_was_yielded(function: Any, tmp_path: Any) -> None:
    cache = SqliteResults(tmp_path / "results.db")
    first = list(ordered_wait([3], function, timeout=TIMEOUT_S, cache=cache))

    assert list(ordered_wait([3], function, timeout=TIMEOUT_S, cache=cache)) == first == [0, 1, 2]


class FailsOnce:
    """Yields 1, and fails in its first call before it yields 2."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, value: int) -> Iterator[int]:
        self.calls += 1
        yield 1
        if self.calls == 1:
            raise self.error
        yield 2


class FailsOnceAsync(FailsOnce):
    async def __call__(self, value: int) -> AsyncIterator[int]:
        for each in super().__call__(value):
            yield each


FAILING = pytest.mark.parametrize("kind", [FailsOnce, FailsOnceAsync])


@FAILING
def test_a_call_that_fails_gives_none_of_its_results(kind: type[FailsOnce]) -> None:
    (captured,) = ordered_wait([0], kind(OSError("gone")), timeout=TIMEOUT_S, on_error="capture")

    assert isinstance(captured, CapturedError)
    assert captured.message == "gone"


@FAILING
@pytest.mark.parametrize("error", [OSError("gone"), RetryAfter(0)])
def test_a_call_that_is_made_again_gives_its_results_once(kind: type[FailsOnce], error: Exception) -> None:
    retry = RetryStrategy.fixed_delay(2, 1, retry_on_exception=OSError)

    assert list(ordered_wait([0], kind(error), timeout=TIMEOUT_S, retry=retry)) == [1, 2]


def test_a_late_call_gives_none_of_its_results_and_its_generator_is_ended() -> None:
    ended = []

    class Hangs(AsyncFunction[int, int]):
        async def async_invoke(self, value: int) -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(value)

        def timeout(self, value: int) -> Iterator[int]:
            yield -1
            yield -2

    assert list(ordered_wait([7], Hangs(), timeout=0.3)) == [-1, -2]
    assert ended == [7]


class NeverEnds:
    """Yields without end and without waiting; sets `ended` when its generator is closed."""

    def __init__(self) -> None:
        self.has_yielded = threading.Event()
        self.ended = threading.Event()

    def __call__(self, value: int) -> Iterator[int]:
        try:
            while True:
                yield value
                self.has_yielded.set()
        finally:
            self.ended.set()


class NeverEndsAsync(NeverEnds):
    async def __call__(self, value: int) -> AsyncIterator[int]:
        with contextlib.closing(super().__call__(value)) as generator:
            for each in generator:
                yield each


class NeverEndsOnLoop(NeverEnds):
    async def __call__(self, value: int) -> Iterator[int]:
        return super().__call__(value)


@pytest.mark.parametrize("kind", [NeverEnds, NeverEndsAsync, NeverEndsOnLoop])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_call_that_yields_without_end_is_ended_if_it_is_late_or_the_iteration_ends(
    kind: type[NeverEnds], is_late: bool
) -> None:
    """It kept its thread and gathered for as long as the process lived; on a loop, nothing else ran any more."""

    def values() -> Iterator[int]:
        yield 0
        assert function.has_yielded.wait(TIMEOUT_S)
        if not is_late:
            raise KeyboardInterrupt

    function = kind()
    results = ordered_wait(values(), function, timeout=0.5 if is_late else TIMEOUT_S, on_error="drop")

    with contextlib.nullcontext() if is_late else pytest.raises(KeyboardInterrupt):
        assert list(results) == []

    assert function.ended.wait(TIMEOUT_S)


def test_a_text_or_none_from_what_declares_an_iterator_is_judged_as_any_result() -> None:
    def one(value: int) -> Iterable[str]:
        return "text"

    def none(value: int) -> Iterator[str] | None:
        return None

    assert list(ordered_wait([0], one, timeout=TIMEOUT_S)) == ["text"]
    with pytest.raises(AsyncOperatorError, match="the function returned None"):
        list(ordered_wait([0], none, timeout=TIMEOUT_S))


@dataclass
class Span:
    """A record that can be iterated."""

    first: int
    last: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last))


class SpanModel(BaseModel):
    """Each pydantic model can be iterated: over its fields."""

    first: int
    last: int


@pytest.mark.parametrize("kind", [Span, SpanModel])
def test_a_record_is_one_result_though_it_can_be_iterated(kind: Any) -> None:
    """It gave its fields as results."""

    def one_or_several(value: int) -> Span | Iterable[Span]:
        found: Span = kind(first=value, last=9)
        return found if value else [found, found]

    found = list(ordered_wait([0, 1], one_or_several, timeout=TIMEOUT_S))

    assert found == [kind(first=0, last=9), kind(first=0, last=9), kind(first=1, last=9)]


# --- functions that are refused


def silent_generator(value: int):  # type: ignore[no-untyped-def]
    yield value


async def silent_async_generator(value: int):  # type: ignore[no-untyped-def]
    yield value


def generator_of_a_list(value: int) -> list[int]:  # type: ignore[misc]
    yield value


class SilentCall:
    def __call__(self, value):  # type: ignore[no-untyped-def]
        yield value


class SilentMethod(AsyncFunction[int, int]):
    async def async_invoke(self, value):  # type: ignore[no-untyped-def]
        yield value


class SilentBatch(AsyncFunction[int, int]):
    async def async_invoke_batch(self, values):  # type: ignore[no-untyped-def]
        yield values


class PlainMethod(AsyncFunction[int, int]):
    def async_invoke(self, value: int) -> int:
        return value


class PlainBatch(AsyncFunction[int, int]):
    def async_invoke_batch(self, values: list[int]) -> list[list[int]]:
        return [values]


class PlainGenerator(AsyncFunction[int, int]):
    def async_invoke(self, value: int) -> Iterator[int]:
        yield value


def hooked(**hooks: Any) -> Any:
    """A blocking function with hooks."""
    return type("Hooked", (Upto,), {"open": lambda self: None, "close": lambda self: None, **hooks})()


def yields(self: Any) -> Iterator[None]:
    yield


async def awaits(self: Any) -> None: ...


class TimeoutAwaits(UptoMethod):
    async def timeout(self, number: int) -> int:
        return number


class TimeoutYields(UptoMethod):
    def timeout(self, number):  # type: ignore[no-untyped-def]
        yield number


class Undefined(AsyncFunction[int, int]): ...


REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (silent_generator, r"silent_generator is a generator, .* Declare it as Iterator\[\.\.\.\]"),
    "async generator": (silent_async_generator, r"silent_async_generator is a gen.* Declare it as AsyncIterator\["),
    "generator of a list": (generator_of_a_list, "generator_of_a_list is a generator, but its return type does not"),
    "partial": (functools.partial(silent_generator), "silent_generator is a generator"),
    "callable object": (SilentCall(), "SilentCall is a generator"),
    "method": (SilentMethod(), r"SilentMethod\.async_invoke is a generator"),
    "batch": (SilentBatch(), r"SilentBatch\.async_invoke_batch is a generator"),
    "plain method": (PlainMethod(), r"PlainMethod\.async_invoke is a plain method, .* Declare it with async def"),
    "plain batch": (PlainBatch(), r"PlainBatch\.async_invoke_batch is a plain method"),
    "plain generator": (PlainGenerator(), r"PlainGenerator\.async_invoke is a plain method"),
    "open yields": (hooked(open=yields), r"Hooked: open\(\) is a generator, which would do nothing"),
    "open awaits": (hooked(open=awaits), r"Hooked: open\(\) of a blocking function cannot be a coroutine"),
    "close awaits": (hooked(close=awaits), r"Hooked: close\(\) of a blocking function cannot be a coroutine"),
    "timeout awaits": (TimeoutAwaits(), r"TimeoutAwaits: timeout\(\) cannot be a coroutine"),
    "neither method": (Undefined(), "Undefined defines neither async_invoke nor async_invoke_batch"),
    "timeout yields": (TimeoutYields(), r"TimeoutYields\.timeout is a generator"),
}


def of_iterable(function: Any) -> object:
    return ordered_wait([1], function, timeout=TIMEOUT_S)


def of_lookup(function: Any) -> object:
    return FunctionTable(function, key="node string", columns="rack string")


@pytest.mark.parametrize("door", [of_iterable, of_lookup])
@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_block_the_loop_or_yields_in_silence_is_refused_at_once(
    door: Callable[[Any], object], function: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        door(function)


@pytest.mark.parametrize("option", ["on_error", "dead_letter", "dedupe_by", "combine"])
@pytest.mark.parametrize(
    ("function", "kind"), [(upto, "a generator"), (upto_returned, "a coroutine function"), (upto_async, "a generator")]
)
def test_an_option_that_nothing_awaits_or_iterates_is_refused(option: str, function: Any, kind: str) -> None:
    options = {"on_error": "capture", option: function}

    with pytest.raises(TypeError, match=rf"{option} is {kind}, upto.*; give a plain function"):
        AsyncOptions(timeout_ms=1, **options)


# --- functions that return awaitables, some of which are no coroutine functions


async def double(value: int) -> int:
    return 2 * value


async def multiply(factor: int, value: int) -> int:
    return factor * value


class Doubling:
    async def __call__(self, value: int) -> int:
        return 2 * value

    async def by_method(self, value: int) -> int:
        return 2 * value


class PassesOn(AsyncFunction[int, int]):
    def async_invoke(self, value: int) -> Awaitable[int]:
        return double(value)


class Decorated(AsyncFunction[int, int]):
    @logged
    async def async_invoke(self, value: int) -> int:
        return 2 * value


class Held(AsyncFunction[int, int]):
    def __init__(self) -> None:
        self.async_invoke = functools.partial(double)  # type: ignore[method-assign]


def passes_on(value: int) -> Awaitable[int]:
    return double(value)


COROUTINES = {
    "method that declares an awaitable": PassesOn(),
    "decorated method": Decorated(),
    "attribute": Held(),
    "function that declares an awaitable": passes_on,
    "partial of a partial": functools.partial(functools.partial(multiply), 2),
    "callable object": Doubling(),
    "bound method": Doubling().by_method,
}


@pytest.mark.parametrize("function", COROUTINES.values(), ids=COROUTINES)
def test_what_declares_or_wraps_an_awaitable_runs_on_the_loop(function: Any) -> None:
    assert list(ordered_wait([1, 2], function, timeout=TIMEOUT_S)) == [2, 4]


def test_a_wrapper_that_returns_no_awaitable_after_all_fails_its_call_by_name() -> None:
    def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(self: Any, value: int) -> int:
            return 2 * value

        return wrapper

    class AtOnce(AsyncFunction[int, int]):
        @at_once
        async def async_invoke(self, value: int) -> int:
            raise NotImplementedError

    with pytest.raises(AsyncOperatorError, match=r"AtOnce\.async_invoke returned 2, which cannot be awaited"):
        list(ordered_wait([1], AtOnce(), timeout=TIMEOUT_S))


def test_a_generator_that_nobody_announced_fails_its_call_with_what_to_do() -> None:
    with pytest.raises(AsyncOperatorError, match=r"returned a generator\. Declare its return type as Iterator"):
        list(ordered_wait([1], lambda value: (each for each in range(value)), timeout=TIMEOUT_S))
