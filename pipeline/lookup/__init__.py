"""Lookup tables and the join of rows with them, independent of any engine."""

from pipeline.lookup.cache import FullCache, LookupCache, NoCache, PartialCache
from pipeline.lookup.errors import LookupTableError, TableUnavailableError
from pipeline.lookup.function import LookupFunction
from pipeline.lookup.function_table import FunctionTable
from pipeline.lookup.metrics import LookupMetrics, register_lookup_metrics
from pipeline.lookup.postgresql import PostgresTable
from pipeline.lookup.schema import Column, LookupReader, LookupSchema, LookupTable
from pipeline.lookup.sqlite import SqliteTable

__all__ = [
    "Column",
    "FullCache",
    "FunctionTable",
    "LookupCache",
    "LookupFunction",
    "LookupMetrics",
    "LookupReader",
    "LookupSchema",
    "LookupTable",
    "LookupTableError",
    "NoCache",
    "PartialCache",
    "PostgresTable",
    "SqliteTable",
    "TableUnavailableError",
    "register_lookup_metrics",
]
