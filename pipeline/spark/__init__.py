"""Spark: jobs over the event journal, Async I/O and lookup joins. The only package here that imports pyspark."""

# The session first: where pyspark is missing, it is the module that says so in one line.
from pipeline.spark.session import SparkUnavailableError, spark_session

# isort: split
from pipeline.spark.async_wait import ordered_wait, unordered_wait
from pipeline.spark.call_metrics import CallMetricsListener, format_call_metrics
from pipeline.spark.failures import task_failure
from pipeline.spark.journal import JournalTables, read_journal
from pipeline.spark.lookup import lookup_join
from pipeline.spark.report import Report, write_report

__all__ = [
    "CallMetricsListener",
    "JournalTables",
    "Report",
    "SparkUnavailableError",
    "format_call_metrics",
    "lookup_join",
    "ordered_wait",
    "read_journal",
    "spark_session",
    "task_failure",
    "unordered_wait",
    "write_report",
]
