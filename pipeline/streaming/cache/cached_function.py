"""A function whose calls go through a cache: each claims its key first, and reports how it has ended.

The claim comes right before the function is called, so a key counts as in flight only while its call is: after a kill,
exactly these calls are unknown. Results on which the retry strategy wants another attempt count as a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from dispatcher.util.foreign import is_instance
from pipeline.streaming.cache.encoding import dump_results
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.session import CacheRequest, FoundResults, ResultSession
from pipeline.streaming.cache.store import ResultKey
from pipeline.streaming.calls.functions import (
    AnyFunction,
    as_results,
    check_batch_results,
    is_coroutine_function,
)
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.function_forms import check_function
from pipeline.streaming.function_wrappers import CallWrapper, Inner, Wrapped

log: logging.Logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.05
"""How often a batch asks for keys that are busy elsewhere."""


def cached_function(
    function: AnyFunction[Any, Any], cache: ResultCache, retry: RetryStrategy | None, *, form: str = ""
) -> Any:
    """`function` with its hooks, of the same kind, but its calls go through `cache`, which `open` opens.

    `form`: describes its results; see ResultCache.keys_of.

    Raises:
        ValueError: the function has no name, as a lambda. TypeError: it cannot be called; see `check_function`.
    """
    check_function(function)
    session = ResultSession(cache, cache.function_name(function), form)
    kind = _CachedCoroutine if is_coroutine_function(function) else _CachedBlocking
    cached = Wrapped(function, kind(session, retry))
    cached.result_session = session  # type: ignore[attr-defined]  # hosts look for it, as for the hooks
    return cached


class _Cached(CallWrapper):
    def __init__(self, session: ResultSession, retry: RetryStrategy | None) -> None:
        self._session = session
        self._retry = retry

    def _report(self, key: ResultKey, returned: Any) -> None:
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
    def __init__(self, session: ResultSession, retry: RetryStrategy | None) -> None:
        super().__init__(session, retry)
        self._loop: asyncio.AbstractEventLoop | None = None  # loop's thread only, once open
        self._waiting: dict[CacheRequest, asyncio.Future[CacheRequest]] = {}  # loop's thread only

    def open(self, inner: Inner) -> Inner:
        async def open_both() -> None:
            self._loop = asyncio.get_running_loop()
            await asyncio.to_thread(self._session.open)
            try:
                await _awaited(inner())
            except BaseException:
                await asyncio.to_thread(self._session.close)
                raise

        return open_both

    def close(self, inner: Inner) -> Inner:
        async def close_both() -> None:
            try:
                await _awaited(inner())
            finally:
                await asyncio.to_thread(self._session.close)

        return close_both

    def coroutine(self, inner: Inner) -> Inner:
        async def async_invoke(value: Any) -> Any:
            (request,) = await self._claims([self._session.key_of(value)], waits=True)
            if request.error is not None:
                raise request.error
            if not request.is_mine:
                return FoundResults(request.results or ())
            try:
                returned = await inner(value)
            except BaseException as error:
                self._has_failed(request.key, error)
                raise
            self._report(request.key, returned)
            return returned

        return async_invoke

    def batch(self, inner: Inner) -> Inner:
        async def async_invoke_batch(values: list[Any]) -> list[Any]:
            keys = [self._session.key_of(value) for value in values]
            answers: dict[ResultKey, Any] = {}
            value_of = dict(zip(reversed(keys), reversed(values), strict=True))  # the first of equal keys
            open_keys = list(dict.fromkeys(keys))
            while open_keys:
                # Without waiting: two batches that each hold keys the other wants would wait for each other.
                requests = await self._claims(open_keys, waits=False)
                for request in requests:
                    if request.error is not None:
                        answers[request.key] = request.error
                    elif request.results is not None:
                        answers[request.key] = FoundResults(request.results)
                if mine := [request.key for request in requests if request.is_mine]:
                    entries = await self._invoke_claimed(inner, mine, [value_of[key] for key in mine])
                    answers.update(zip(mine, entries, strict=True))
                open_keys = [request.key for request in requests if request.is_busy]
                if open_keys:
                    await asyncio.sleep(_LOOK_AGAIN_S)
            return [answers[key] for key in keys]

        return async_invoke_batch

    async def _invoke_claimed(self, invoke_batch: Inner, keys: list[ResultKey], values: list[Any]) -> list[Any]:
        try:
            entries = list(check_batch_results(await invoke_batch(values), len(values)))
        except BaseException as error:
            for key in keys:
                self._has_failed(key, error)
            raise
        for place, (key, entry) in enumerate(zip(keys, entries, strict=True)):
            if is_instance(entry, BaseException):
                self._session.release(key)
                continue
            try:
                self._report(key, entry)
            except Exception as error:
                entries[place] = error
        return entries

    def _has_failed(self, key: ResultKey, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._session.cut_off(key)
        else:
            self._session.release(key)

    async def _claims(self, keys: Sequence[ResultKey], *, waits: bool) -> list[CacheRequest]:
        loop = self._loop
        assert loop is not None, "the host opens its function before it calls it"
        requests = [CacheRequest(key, self._claimed, wants_call=True, waits=waits) for key in keys]
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

    def _claimed(self, requests: list[CacheRequest]) -> None:
        """Session's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._wake, requests)
        except RuntimeError:  # the loop is closed, and the calls with it
            log.debug("answers after the end of the calls' loop")

    def _wake(self, requests: list[CacheRequest]) -> None:
        for request in requests:
            future = self._waiting.pop(request)
            if not future.done():
                future.set_result(request)
            elif request.is_mine:  # its call was cancelled meanwhile
                self._session.release(request.key)


class _CachedBlocking(_Cached):
    """Any thread calls it, as the function."""

    def open(self, inner: Inner) -> Inner:
        def open_both() -> None:
            self._session.open()
            try:
                inner()
            except BaseException:
                self._session.close()
                raise

        return open_both

    def close(self, inner: Inner) -> Inner:
        def close_both() -> None:
            try:
                inner()
            finally:
                self._session.close()

        return close_both

    def blocking(self, inner: Inner) -> Inner:
        def call(value: Any) -> Any:
            is_answered = threading.Event()
            # The session's thread sets it.
            request = CacheRequest(self._session.key_of(value), lambda _: is_answered.set(), wants_call=True)
            self._session.submit(request)
            is_answered.wait()
            if request.error is not None:
                raise request.error
            if not request.is_mine:
                return FoundResults(request.results or ())
            try:
                returned = inner(value)
            except BaseException:
                self._session.release(request.key)
                raise
            self._report(request.key, returned)
            return returned

        return call


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
