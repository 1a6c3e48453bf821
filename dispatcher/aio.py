"""For daemons built on asyncio: post, wait and ask from the event loop without blocking it; `async def` handlers.

A plain handler runs on the handler thread, and reaches the loop through `loop.call_soon_threadsafe`. An `async def`
handler runs on the loop: `AsyncDispatcher(loop=loop)`, or `AsyncioHandler` for more control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.errors import EventRefusedError, QueueFullError
from dispatcher.event import AsyncioHandler
from dispatcher.multi_dispatcher import MultiDispatcher
from dispatcher.queue.later import post_later

__all__ = ["AsyncioHandler", "await_drained", "post", "stop", "submit"]

T = TypeVar("T")


async def post(dispatcher: AsyncDispatcher | MultiDispatcher, event: Any) -> bool:
    """As `dispatcher.event_handler.handle(event)`, but does not block the loop while it waits for room in a full queue
    or, in write-ahead mode, for the disk. Tasks that wait for the disk at the same time share a write and an fsync.

    Posts awaited one after another are handled in that order. Cancelling the waiting task withdraws the event if it
    waits in write-ahead mode for others to be written; later, and while it waits for room, the post goes on.
    """
    try:
        if isinstance(dispatcher, AsyncDispatcher) and dispatcher.queue.write_ahead.is_on:
            return await asyncio.wrap_future(post_later(dispatcher.queue, event, wait=False))
        return dispatcher.post_without_waiting(event)
    except EventRefusedError:
        return False
    except QueueFullError:
        return await asyncio.to_thread(dispatcher.event_handler.handle, event)


async def await_drained(dispatcher: AsyncDispatcher | MultiDispatcher, timeout: float | None = None) -> bool:
    """Wait until drained, up to `timeout` seconds (None: for ever); returns whether it is.

    Raises:
        RuntimeError: called by a handler of the dispatcher, which would wait for itself.
    """
    if not isinstance(dispatcher, MultiDispatcher) and dispatcher.is_handling():
        raise RuntimeError(f"{dispatcher.name}: a handler cannot wait until its own dispatcher is drained")
    if isinstance(dispatcher, MultiDispatcher):
        return await asyncio.to_thread(dispatcher.await_drained, timeout)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(dispatcher.when_drained()), timeout)
    except TimeoutError:
        return False


async def submit(dispatcher: AsyncDispatcher, command: Callable[[], T], description: str = "", *args: Any) -> T:
    """Run `command` on the handler thread, between two events, and return its result or raise its error.

    `description` is %-formatted with `args`.

    Raises:
        RejectedExecutionError: the dispatcher has stopped; the command will not run.
    """
    return await asyncio.wrap_future(dispatcher.mailbox_executor.submit(command, description, *args))


async def stop(dispatcher: AsyncDispatcher | MultiDispatcher) -> None:
    """As `dispatcher.stop()`, which waits for the drain, without blocking the loop.

    Called by an `async def` handler of the dispatcher, it does not wait; the dispatcher stops once the handler ends.
    """
    await asyncio.to_thread(dispatcher.stop)
