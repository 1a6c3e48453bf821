"""What the endpoints of the ops API share: JSON, lists in pages, errors of one line, and work off the loop."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import describe, tell
from dispatcher.util.terminal import one_line
from dispatcher.util.threads import NO_THREAD

log = logging.getLogger(__name__)

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

LIMIT: Final = 100
MOST: Final = 1000
OFF_LOOP_S: Final = 10.0
"""Work on a thread that takes longer gives its client 503."""
_WORKERS: Final = 8
"""Most such threads of one app."""


class Refusal(Exception):
    """An error as the answer: its status, one line, and Retry-After in seconds, if any."""

    def __init__(self, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    def response(self) -> Response:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return answer({"error": one_line(self.reason)}, self.status, headers)


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return raw_answer(to_json(content), status, headers)


def raw_answer(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    all_headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(body, status, all_headers, "application/json")


def to_json(content: Any) -> bytes:
    """As UTF-8. Lone surrogates in texts become escapes."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def endpoint(function: Endpoint) -> Endpoint:
    """Turns any exception of the endpoint into an error of one line."""

    @wraps(function)
    async def guarded(request: Request) -> Response:
        try:
            return await function(request)
        except Refusal as refusal:
            return refusal.response()
        except DispatcherError as error:
            return answer({"error": one_line(str(error))}, 503)
        except Exception as error:
            tell(log, logging.ERROR, "%s %s failed", request.method, one_line(request.url.path), error=error)
            return answer({"error": one_line(f"{describe(error)}; the log has its traceback")}, 500)

    return guarded


async def http_error(request: Request, error: Exception) -> Response:
    """The router's error: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = one_line(request.url.path, 200)
    reasons = {404: f"{path}: no such path", 405: f"{path}: method {request.method} is not allowed"}
    return answer({"error": reasons.get(error.status_code, one_line(error.detail))}, error.status_code, error.headers)


# -- parameters --------------------------------------------------------------------------------------------------------


def number(request: Request, name: str, default: T, least: int, most: int) -> int | T:
    """A whole number from the query. Raises Refusal (400) for any other text, or out of bounds."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
        raise Refusal(400, f"{name}={text}: expected a whole number from {least} to {most}")
    return int(text)


def limit_of(request: Request, default: int = LIMIT) -> int:
    return number(request, "limit", default, 1, MOST)


def choice(request: Request, name: str, allowed: Sequence[str]) -> str:
    """One of the allowed texts, the first by default. Raises Refusal (400)."""
    text = request.query_params.get(name, allowed[0])
    if text not in allowed:
        raise Refusal(400, f"{name}={text}: not one of {', '.join(allowed)}")
    return text


def listed(items: Sequence[Any], next: str | None, total: int | None, **more: Any) -> dict[str, Any]:
    return {"items": items, "next": next, "total": total, **more}


def page_of(request: Request, items: Sequence[Any], **more: Any) -> dict[str, Any]:
    """The page of a list that is made anew for each request: the cursor is a position."""
    limit, start = limit_of(request), number(request, "after", 0, 0, 10**9)
    end = start + limit
    return listed(items[start:end], str(end) if end < len(items) else None, len(items), **more)


# -- the loop ----------------------------------------------------------------------------------------------------------


class Workers:
    """Runs functions on threads of their own, at most `most` at a time. One loop's thread."""

    def __init__(self, most: int = _WORKERS) -> None:
        self._most = most
        self._busy = 0  # the loop's thread

    async def run(self, function: Callable[[], T], within_s: float = OFF_LOOP_S) -> T:
        """The function's result.

        Its thread is a daemon: one that hangs delays no exit. Raises Refusal (503) after `within_s`, or without a
        thread, and (429) if `most` are at work already.
        """
        if self._busy >= self._most:
            raise Refusal(429, f"{self._most} such requests are in flight", 1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1

        def done(result: Any, error: BaseException | None) -> None:
            self._busy -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            result: Any = None
            raised: BaseException | None = None
            try:
                result = function()
            except BaseException as error:
                raised = error
            try:
                loop.call_soon_threadsafe(done, result, raised)
            except RuntimeError:
                return  # the loop has ended meanwhile

        try:
            threading.Thread(target=work, name="ops-worker", daemon=True).start()
        except NO_THREAD as error:
            self._busy -= 1
            raise without_thread(error) from None
        try:
            return await asyncio.wait_for(future, within_s)
        except TimeoutError:
            raise Refusal(503, f"this took longer than {within_s:g} s; ask for less", 1) from None


def without_thread(error: BaseException) -> Refusal:
    """The answer where `error`, one of NO_THREAD, keeps a request from its thread."""
    return Refusal(503, f"no thread could be started: {error}", 1)


class Kept:
    """Keeps each answer for `for_s`; clients that ask meanwhile share it. One loop's thread."""

    def __init__(self, for_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._for_s = for_s
        self._clock_s = clock_s
        self._made: dict[Any, tuple[float, bytes]] = {}
        self._making: dict[Any, asyncio.Future[bytes]] = {}

    def get(self, key: Any) -> bytes | None:
        """The answer, if it was made less than `for_s` ago."""
        now_s = self._clock_s()
        for old in [each for each, (at_s, _) in self._made.items() if now_s - at_s >= self._for_s]:
            del self._made[old]
        found = self._made.get(key)
        return None if found is None else found[1]

    def is_making(self) -> bool:
        return bool(self._making)

    async def make(self, key: Any, function: Callable[[], Awaitable[Any]]) -> bytes:
        """The kept answer, or the one that is being made, or a new one."""
        kept = self.get(key)
        if kept is not None:
            return kept
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.ensure_future(self._make(key, function))
        # A client that leaves must not take the answer from the others.
        return await asyncio.shield(task)

    async def _make(self, key: Any, function: Callable[[], Awaitable[Any]]) -> bytes:
        try:
            body = to_json(await function())
            self._made[key] = self._clock_s(), body
            return body
        finally:
            del self._making[key]


def milliseconds(unix_s: float) -> int:
    return round(unix_s * 1000)
