"""Spark: jobs over the event journal, Async I/O and lookup joins. The only package that imports pyspark.

Names are imported on first access, because each Python worker of Spark imports this package but needs only a part.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.spark.async_io.async_wait import ordered_wait, unordered_wait
    from pipeline.spark.async_io.column.async_column import async_column, register_async
    from pipeline.spark.async_io.lookup_join import lookup_join
    from pipeline.spark.errors import ExecutorError
    from pipeline.spark.executors import prepare_executors
    from pipeline.spark.failures import task_failure
    from pipeline.spark.java import SparkUnavailableError
    from pipeline.spark.observed_calls import CallMetricsListener, call_metrics, format_call_metrics
    from pipeline.spark.report.report import Report, write_report
    from pipeline.spark.result_caches import PostgresResults, SqliteResults
    from pipeline.spark.session import spark_session
    from pipeline.spark.source.journal import (
        journal_damage,
        journal_failure,
        read_journal,
        stream_journal,
    )
    from pipeline.spark.source.journal_source import register_journal
    from pipeline.spark.source.yarn_log import conformance, read_yarn_log

_MODULES = {
    "async_io.column.async_column": ("async_column", "register_async"),
    "async_io.async_wait": ("ordered_wait", "unordered_wait"),
    "result_caches": ("PostgresResults", "SqliteResults"),
    "observed_calls": ("CallMetricsListener", "call_metrics", "format_call_metrics"),
    "errors": ("ExecutorError",),
    "executors": ("prepare_executors",),
    "failures": ("task_failure",),
    "source.journal": ("journal_damage", "journal_failure", "read_journal", "stream_journal"),
    "source.journal_source": ("register_journal",),
    "async_io.lookup_join": ("lookup_join",),
    "report.report": ("Report", "write_report"),
    "java": ("SparkUnavailableError",),
    "session": ("spark_session",),
    "source.yarn_log": ("conformance", "read_yarn_log"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CallMetricsListener",
    "ExecutorError",
    "PostgresResults",
    "Report",
    "SparkUnavailableError",
    "SqliteResults",
    "async_column",
    "call_metrics",
    "conformance",
    "format_call_metrics",
    "journal_damage",
    "journal_failure",
    "lookup_join",
    "ordered_wait",
    "prepare_executors",
    "read_journal",
    "read_yarn_log",
    "register_async",
    "register_journal",
    "spark_session",
    "stream_journal",
    "task_failure",
    "unordered_wait",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The session first: if pyspark is missing, this module reports it in one line.
    import_module("pipeline.spark.session")
    return getattr(import_module(f"pipeline.spark.{_MODULE_OF[name]}"), name)
