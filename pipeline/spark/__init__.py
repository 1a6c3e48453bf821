"""Spark over the event journal. The only package here that imports pyspark."""

# The session first: where pyspark is missing, it is the module that says so in one line.
from pipeline.spark.session import SparkUnavailableError, spark_session

# isort: split
from pipeline.spark.journal import JournalTables, read_journal
from pipeline.spark.report import Report, write_report

__all__ = [
    "JournalTables",
    "Report",
    "SparkUnavailableError",
    "read_journal",
    "spark_session",
    "write_report",
]
