"""A function whose calls go through a cache: each claims its key first, and reports how it has ended.

The claim comes right before the function is called, so a key counts as under way only while its call is: after a kill,
exactly these calls are unknown. Results on which the retry strategy wants another attempt count as a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from pipeline.streaming.cache.encoding import dump_results
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.session import Request, ResultSession
from pipeline.streaming.cache.store import Key
from pipeline.streaming.calls.functions import (
    AnyFunction,
    as_results,
    check_batch_results,
    is_batch_function,
    is_coroutine_function,
)
from pipeline.streaming.calls.retry import RetryStrategy

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.05
"""How often a batch asks for keys that are busy elsewhere."""


def cached_function(
    function: AnyFunction[Any, Any], cache: ResultCache, retry: RetryStrategy | None, *, name: str = "", form: str = ""
) -> Any:
    """`function` with its hooks, of the same kind, but its calls go through `cache`, which `open` opens.

    `name`: of the function in the cache; by default its own. `form`: describes its results; see ResultCache.keys_of.

    Raises:
        ValueError: the function has no name, as a lambda.
    """
    session = ResultSession(cache, name or cache.function_name(function), form)
    kind = _CachedCoroutine if is_coroutine_function(function) else _CachedBlocking
    return kind(function, session, retry)


class _Cached:
    """Has the hooks of the function, and those of the session around them."""

    def __init__(self, function: Any, session: ResultSession, retry: RetryStrategy | None) -> None:
        self.result_session = session
        self._function = function
        self._session = session
        self._retry = retry
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
        if callable(hook := getattr(function, "timeout", None)):
            self.timeout = hook
        hooks: list[Any] = [getattr(function, hook, None) for hook in ("open", "close")]
        self._hooks = hooks if all(map(callable, hooks)) else [_nothing, _nothing]

    def _report(self, key: Key, returned: Any) -> None:
        """Store what the call of a claimed key returned, unless another attempt will follow.

        Raises:
            TypeError: it cannot be stored.
        """
        try:
            results = as_results(returned)
        except TypeError:
            self._session.release(key)  # the operator says what is wrong
            return
        try:
            if self._retry is not None and self._retry.retries_result(results):
                self._session.release(key)
            else:
                self._session.finish(key, dump_results(results))
        except BaseException:
            self._session.release(key)
            raise


class _CachedCoroutine(_Cached):
    def __init__(self, function: Any, session: ResultSession, retry: RetryStrategy | None) -> None:
        super().__init__(function, session, retry)
        self._loop: asyncio.AbstractEventLoop | None = None  # loop's thread only, once open
        self._waiting: dict[Request, asyncio.Future[Request]] = {}  # loop's thread only
        if is_batch_function(function):
            self._invoke = function.async_invoke_batch
            self.async_invoke_batch = self._call_batch
        else:
            self._invoke = getattr(function, "async_invoke", function)
            self.async_invoke = self._call

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._session.open)
        try:
            await _awaited(self._hooks[0]())
        except BaseException:
            await asyncio.to_thread(self._session.close)
            raise

    async def close(self) -> None:
        try:
            await _awaited(self._hooks[1]())
        finally:
            await asyncio.to_thread(self._session.close)

    async def _call(self, value: Any) -> Any:
        (request,) = await self._claims([self._session.key_of(value)], waits=True)
        if request.error is not None:
            raise request.error
        if not request.is_mine:
            return request.results
        key = request.key
        try:
            returned = await self._invoke(value)
        except (asyncio.CancelledError, GeneratorExit):
            self._session.cut_off(key)
            raise
        except BaseException:
            self._session.release(key)
            raise
        self._report(key, returned)
        return returned

    async def _call_batch(self, values: list[Any]) -> list[Any]:
        keys = [self._session.key_of(value) for value in values]
        answers: dict[Key, Any] = {}
        value_of = dict(zip(reversed(keys), reversed(values), strict=True))  # the first of equal keys
        open_keys = list(dict.fromkeys(keys))
        while open_keys:
            # Without waiting: a batch that holds some keys and waits for others may wait for one that does the same.
            requests = await self._claims(open_keys, waits=False)
            for request in requests:
                if request.error is not None or request.results is not None:
                    answers[request.key] = request.error if request.error is not None else request.results
            if mine := [request.key for request in requests if request.is_mine]:
                answers.update(zip(mine, await self._invoke_claimed(mine, value_of), strict=True))
            open_keys = [request.key for request in requests if request.is_busy]
            if open_keys:
                await asyncio.sleep(_LOOK_AGAIN_S)
        return [answers[key] for key in keys]

    async def _invoke_claimed(self, keys: list[Key], value_of: dict[Key, Any]) -> list[Any]:
        try:
            entries = list(check_batch_results(await self._invoke([value_of[key] for key in keys]), len(keys)))
        except (asyncio.CancelledError, GeneratorExit):
            for key in keys:
                self._session.cut_off(key)
            raise
        except BaseException:
            for key in keys:
                self._session.release(key)
            raise
        for place, (key, entry) in enumerate(zip(keys, entries, strict=True)):
            if isinstance(entry, BaseException):
                self._session.release(key)
                continue
            try:
                self._report(key, entry)
            except Exception as error:
                entries[place] = error
        return entries

    async def _claims(self, keys: Sequence[Key], *, waits: bool) -> list[Request]:
        loop = self._loop
        assert loop is not None, "the host opens its function before it calls it"
        requests = [Request(key, self._claimed, wants_call=True, waits=waits) for key in keys]
        futures = [loop.create_future() for _ in requests]
        self._waiting.update(zip(requests, futures, strict=True))
        for request in requests:
            self._session.submit(request)
        try:
            return [await future for future in futures]
        except BaseException:  # cancelled: release what was claimed, and what will be
            for request, future in zip(requests, futures, strict=True):
                if not future.done():
                    future.cancel()
                elif not future.cancelled() and request.is_mine:
                    self._session.release(request.key)
            raise

    def _claimed(self, requests: list[Request]) -> None:
        """Session's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._wake, requests)
        except RuntimeError:  # the loop is closed, and the calls with it
            log.debug("%s: answers after the end", self.__qualname__)

    def _wake(self, requests: list[Request]) -> None:
        for request in requests:
            future = self._waiting.pop(request)
            if not future.done():
                future.set_result(request)
            elif request.is_mine:  # its call was cancelled meanwhile
                self._session.release(request.key)


class _CachedBlocking(_Cached):
    """Any thread calls it, as the function."""

    def open(self) -> None:
        for hook in self._hooks:
            if inspect.iscoroutinefunction(hook):
                raise TypeError(
                    f"{self.__qualname__}: open() and close() of a blocking function cannot be coroutines; make them "
                    "plain methods"
                )
        self._session.open()
        try:
            self._hooks[0]()
        except BaseException:
            self._session.close()
            raise

    def close(self) -> None:
        try:
            self._hooks[1]()
        finally:
            self._session.close()

    def __call__(self, value: Any) -> Any:
        claim = _BlockingClaim()
        request = Request(self._session.key_of(value), claim.answered, wants_call=True)
        self._session.submit(request)
        claim.wait()
        if request.error is not None:
            raise request.error
        if not request.is_mine:
            return request.results
        try:
            returned = self._function(value)
        except BaseException:
            self._session.release(request.key)
            raise
        self._report(request.key, returned)
        return returned


class _BlockingClaim:
    def __init__(self) -> None:
        self._is_answered = threading.Event()
        self.wait = self._is_answered.wait

    def answered(self, _: list[Request]) -> None:
        """Session's thread."""
        self._is_answered.set()


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def _nothing() -> None:
    return None
