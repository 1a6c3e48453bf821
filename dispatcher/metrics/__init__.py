"""Prometheus metrics of dispatchers, read from their plain counters at a scrape (invariant 11), and what any thread may
list of their state machines.

A name is imported at its first use: what lists entities does not need prometheus_client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.util.lazy import lazy_names

if TYPE_CHECKING:
    from dispatcher.metrics.collector import MetricsSource, register_metrics
    from dispatcher.metrics.entities import (
        DeclaredTransition,
        DeclaringSource,
        EntityNow,
        EntityPage,
        EntitySource,
        MachineNow,
        register_entities,
    )
    from dispatcher.metrics.server import MetricsServer

__all__ = [
    "DeclaredTransition",
    "DeclaringSource",
    "EntityNow",
    "EntityPage",
    "EntitySource",
    "MachineNow",
    "MetricsServer",
    "MetricsSource",
    "register_entities",
    "register_metrics",
]

__getattr__ = lazy_names(__name__)
