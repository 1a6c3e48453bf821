"""Lookup tables and the join of rows with them, independent of any engine."""

from pipeline.lookup.cache import FullCache, PartialCache
from pipeline.lookup.errors import FailedQueryError, LookupTableError, TableUnavailableError
from pipeline.lookup.function_table import FunctionTable
from pipeline.lookup.metrics import LookupMetrics, register_lookup_metrics
from pipeline.lookup.postgresql import PostgresTable
from pipeline.lookup.schema import Column, LookupTable
from pipeline.lookup.sqlite import SqliteTable

__all__ = [
    "Column",
    "FailedQueryError",
    "FullCache",
    "FunctionTable",
    "LookupMetrics",
    "LookupTable",
    "LookupTableError",
    "PartialCache",
    "PostgresTable",
    "SqliteTable",
    "TableUnavailableError",
    "register_lookup_metrics",
]
