"""The journal's data source, called as Spark calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from pipeline.spark import register_journal


def _registered() -> Any:
    """The class that a session is given."""
    session = MagicMock()
    register_journal(session)
    return session.dataSource.register.call_args.args[0]


JournalSource = _registered()
FORMAT: str = JournalSource.name()


def source(path: Path | str, **options: str) -> Any:
    """With the options of a reader; by default of the events."""
    return JournalSource(CaseInsensitiveDict({"path": str(path), "table": "events", **options}))


def table_schema(table: str) -> StructType:
    schema: StructType = source("unused", table=table).schema()
    return schema
