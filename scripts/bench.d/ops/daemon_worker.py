"""A daemon that is measured, with a door or without: daemon_worker.py OPTIONS-AS-JSON."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any

from load import Load
from ops.processes import Answer, Pouring, resident_bytes, serve
from prometheus_client import CollectorRegistry, start_http_server

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, MetricsServer, register_metrics

NAME = "central"
MARK_EVERY = 100
Kinds = Enum("Kinds", [f"KIND_{number}" for number in range(8)])  # type: ignore[misc]


class Handler:
    """Counts. It stays in its event while it is held, and works on each one if it has to. Handler thread only."""

    def __init__(self, loops: int) -> None:
        self._loops = range(loops)
        self.handled = 0
        self.marks: list[float] = []
        """When each `MARK_EVERY` events were handled, monotonic: of a handler that works."""
        self.is_held = threading.Event()
        self.released = threading.Event()
        self.released.set()
        self.is_quick = False
        """Written by the main thread, read by the handler's: whether a handler that works need not work any more."""

    def count(self, event: Any) -> None:
        self.handled += 1

    def work(self, event: Any) -> None:
        self.handled += 1
        if not self.released.is_set():
            self.is_held.set()
            self.released.wait()
        if self.is_quick:
            return
        for _ in self._loops:
            pass
        if self.handled % MARK_EVERY == 0:
            self.marks.append(time.monotonic())


class Daemon:
    """One dispatcher, with what the options ask for. For one thread.

    Options: `door`, `metrics` (our server), `peer` (the server of prometheus_client): whether they are there;
    `times`: as in the configuration; `types`: of events; `events`: made beforehand; `capacity`: of the queue, which
    rejects beyond it; `handler`: count, or work, which can be held; `loops`: so many go round for each event.
    """

    def __init__(self, options: Answer) -> None:
        self._stack = ExitStack()
        self._registry = CollectorRegistry()
        self._handler = Handler(options.get("loops", 0))
        self._pouring: Pouring | None = None
        self.started: Answer = {}
        if options.get("door"):
            self._open_door(options.get("requests_per_s"))
        if options.get("metrics"):
            server = self._stack.enter_context(MetricsServer(registry=self._registry))
            self.started["metrics"] = server.port
        if options.get("peer"):
            httpd, thread = start_http_server(0, "127.0.0.1", self._registry)
            self._stack.callback(thread.join)
            self._stack.callback(httpd.server_close)
            self._stack.callback(httpd.shutdown)
            self.started["peer"] = httpd.server_port
        capacity = options.get("capacity")
        config = DispatcherConfig(
            measure_times=options.get("times", "sampled"),
            queue_capacity=capacity,
            queue_full_policy="reject",
            drain_events_on_stop=False,
        )
        self._dispatcher = AsyncDispatcher(config, name=NAME)
        self._dispatcher.register(Kinds, getattr(self._handler, options.get("handler", "count")))
        register_metrics(self._dispatcher, self._registry)
        self._stack.enter_context(self._dispatcher)
        kinds = list(Kinds)[: options.get("types", 1)]
        self._events = [Event(kinds[number % len(kinds)], 0.0) for number in range(options.get("events", 1))]
        self._post = self._dispatcher.event_handler.handle
        gc.collect()
        gc.freeze()  # the collector need not look at these in each turn

    def _open_door(self, requests_per_s: float | None) -> None:
        from dispatcher.ops import OpsDoor
        from dispatcher.web import WebConfig

        path = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "door.sock"
        pace = {} if requests_per_s is None else {"requests_per_s": requests_per_s}
        self._stack.enter_context(OpsDoor(web=WebConfig(socket_path=path, **pace)))
        self.started["socket"] = str(path)

    # -- what it can be asked to do ------------------------------------------------------------------------------------

    def flood(self, seconds: float) -> Answer:
        """Post the events, and wait until they are handled, again and again for so long."""
        load, took_s, runs = Load(premade=self._events), 0.0, 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            gc.collect()  # outside the measured time
            took_s += load.drive(len(self._events), self._post, self._dispatcher.await_drained)
            runs += 1
        return {"rate": runs * len(self._events) / took_s, "events": runs * len(self._events)}

    def hold(self) -> None:
        """Let the handler stay in one event, and post the others behind it."""
        handler = self._handler
        handler.released.clear()
        handler.is_held.clear()
        self._post(self._events[0])
        handler.is_held.wait()
        handler.marks.clear()
        for event in self._events:
            self._post(event)

    def release(self) -> None:
        self._handler.released.set()

    def await_drained(self) -> None:
        self.release()
        self._dispatcher.await_drained()

    def discard(self) -> None:
        """Let the handler end what is queued without working on it."""
        self._handler.is_quick = True
        self.await_drained()
        self._handler.is_quick = False

    def marks(self) -> Answer:
        """When the handler that works had handled each further `MARK_EVERY` events, and how many are queued."""
        return {"marks": list(self._handler.marks), "queued": self._dispatcher.queue_size()}

    def pour(self, producers: int) -> None:
        """Fill the queue to its capacity, let the handler go, and keep threads posting at full speed.

        What is too much is refused.
        """
        post, events = self._post, self._events
        self.hold()
        while post(events[0]):
            pass

        def post_many() -> None:
            for event in events[:1000]:
                post(event)

        self._pouring = Pouring(producers, post_many)
        self.release()

    def stop_pouring(self) -> Answer:
        assert self._pouring is not None
        queued = self._dispatcher.queue_size()
        self._pouring.stop()
        self._pouring = None
        return {"queued": queued}

    def memory(self) -> Answer:
        gc.collect()
        return {"bytes": resident_bytes()}

    def close(self) -> None:
        self._handler.released.set()
        if self._pouring is not None:
            self._pouring.stop()
        self._stack.close()


if __name__ == "__main__":
    serve(Daemon)
