"""The AsyncDispatcher as it is measured: with metrics and without, bounded and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from load import Counting, Kind, Load
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, register_metrics

Times = Literal["all", "sampled", "none"]
BOUND = 10_000


def config(times: Times = "sampled", **settings: Any) -> DispatcherConfig:
    return DispatcherConfig(measure_times=times, **settings)


def async_dispatcher(
    load: Load, times: Times = "sampled", capacity: int | None = None, *, metrics: bool = True
) -> Callable[[int], float]:
    """Metrics on: registered with a registry of its own, which has to tell the events handled in the end."""
    settings = config(times, queue_capacity=capacity)

    def run(count: int) -> float:
        handler, registry = Counting(), CollectorRegistry()
        with AsyncDispatcher(settings) as dispatcher:
            dispatcher.register(Kind, handler)
            if metrics:
                register_metrics(dispatcher, registry)
            took = load.drive(count, dispatcher.event_handler.handle, dispatcher.await_drained)
        assert handler.handled == count
        if metrics:
            labels = {"dispatcher": dispatcher.name, "event_class": "Kind", "event_type": "TICK"}
            assert registry.get_sample_value("dispatcher_events_handled_total", labels) == count
        return took

    return run
