"""Prometheus metrics of dispatchers, read from their plain counters at a scrape (invariant 11)."""

from dispatcher.metrics.collector import DispatcherCollector, MetricsSource, register_metrics
from dispatcher.metrics.server import MetricsServer

__all__ = ["DispatcherCollector", "MetricsServer", "MetricsSource", "register_metrics"]
