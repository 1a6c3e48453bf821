"""An asyncio daemon with aiomonitor, a peer of the door: peers_worker.py OPTIONS-AS-JSON."""

from __future__ import annotations

import asyncio
import collections
import gc
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ops.processes import Answer, Pouring, resident_bytes, serve, wait_until

TASKS = 10
MOST_MORE = 100_000
"""Callbacks of the producers that wait at a time."""


class AsyncioDaemon:
    """A loop on a thread, with a few tasks that wait. Options: `monitor`: whether aiomonitor is there.

    Its callbacks stand for events: they count, or one holds the loop.
    """

    def __init__(self, options: Answer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._stack = ExitStack()
        self._pouring: Pouring | None = None
        self._released = threading.Event()
        self._is_full = False  # written by the main thread, read by the loop's
        self._handled = 0  # the loop's thread only
        self._posted: collections.Counter[int] = collections.Counter()  # by thread: each writes its own
        self.started: Answer = {}
        running = threading.Event()
        self._loop.call_soon(running.set)
        self._thread.start()
        running.wait()
        if options.get("monitor"):
            self._start_monitor()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(asyncio.Event().wait()) for _ in range(TASKS)]
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    def _start_monitor(self) -> None:
        from aiomonitor import Monitor

        self.started = {"telnet": free_port(), "web": free_port()}
        monitor = Monitor(
            self._loop,
            termui_port=self.started["telnet"],
            webui_port=self.started["web"],
            console_enabled=False,
        )
        self._on_loop(monitor.start)
        self._stack.callback(self._on_loop, monitor.close)

    def _on_loop(self, function: Callable[[], Any]) -> None:
        done = threading.Event()

        def call() -> None:
            try:
                function()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(call)
        done.wait()

    # -- what it can be asked to do ------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Let the loop stay in one callback."""
        self._released.clear()
        held = threading.Event()

        def callback() -> None:
            held.set()
            self._released.wait()

        self._loop.call_soon_threadsafe(callback)
        held.wait()

    def release(self) -> None:
        self._released.set()

    def pour(self, producers: int, queued: int) -> None:
        """Keep so many callbacks queued, and threads posting more at full speed.

        The loop is faster than they are, so each of the queued ones queues itself again.
        """
        post, again, count = self._loop.call_soon_threadsafe, self._again, self._count
        self.hold()
        self._is_full = True
        for _ in range(queued):
            post(again)

        def post_many() -> None:
            place = threading.get_ident()
            if sum(list(self._posted.values())) - self._handled < MOST_MORE:
                for _ in range(1000):
                    post(count)
                self._posted[place] += 1000

        self._pouring = Pouring(producers, post_many)
        self.release()

    def stop_pouring(self) -> Answer:
        assert self._pouring is not None
        queued = self._queued()
        self._pouring.stop()
        self._pouring, self._is_full = None, False
        wait_until(lambda: self._queued() == 0)
        return {"queued": queued}

    def _queued(self) -> int:
        return len(self._loop._ready)  # type: ignore[attr-defined] -- asyncio has no public name for it

    def memory(self) -> Answer:
        gc.collect()
        return {"bytes": resident_bytes()}

    def close(self) -> None:
        self._released.set()
        if self._pouring is not None:
            self._pouring.stop()
        self._stack.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _count(self) -> None:
        self._handled += 1

    def _again(self) -> None:
        if self._is_full:
            self._loop.call_soon(self._again)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(AsyncioDaemon)
