"""Small hand-made journals, and the comparison of a job's table with literal rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.spark import read_journal

from ..journal_builder import JournalBuilder
from .data_source import table_schema


class Tables(NamedTuple):
    events: DataFrame
    transitions: DataFrame


class SparkJournal(JournalBuilder):
    """A journal as Spark's tables, too."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        super().__init__(path)
        self._spark = spark

    def tables(self) -> Tables:
        """All rows in the order of seq, without writing them to disk, which takes a second."""
        made = []
        for table in (EVENTS, TRANSITIONS):
            values = [tuple(row.values()) for row in self.rows(table).to_pylist()]
            made.append(self._spark.createDataFrame(values, table_schema(table.name)))
        return Tables(*made)

    def read(self) -> Any:
        """All rows, as Spark reads them from disk."""
        return read_journal(self._spark, self.path)


@pytest.fixture
def journal(tmp_path: Path, spark: SparkSession) -> SparkJournal:
    return SparkJournal(tmp_path / "journal", spark)


@pytest.fixture(scope="module")
def module_journal(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SparkJournal:
    """A journal that the tests of a module share, because reading it takes seconds."""
    return SparkJournal(tmp_path_factory.mktemp("module") / "journal", spark)


def _assert_table(table: DataFrame, schema: str, rows: list[tuple[Any, ...]]) -> None:
    found = [(field.name, field.dataType) for field in table.schema]
    declared = StructType.fromDDL(schema)
    assert isinstance(declared, StructType)
    assert found == [(field.name, field.dataType) for field in declared]
    assert sorted(map(tuple, table.collect()), key=repr) == sorted(rows, key=repr)


@pytest.fixture
def assert_table() -> Callable[[DataFrame, str, list[tuple[Any, ...]]], None]:
    """Compares a table's columns and types, and its rows in any order, with literal ones."""
    return _assert_table


@pytest.fixture(scope="session")
def connect(spark: SparkSession, connect_url: str) -> Iterator[Any]:
    """A session of Spark Connect, served by the classic session. Each new one starts Python workers of its own."""
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = ConnectSession.builder.remote(connect_url).create()
    yield session
    session.stop()


@pytest.fixture
def connect_mode(connect: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The session `connect` in a process whose `pyspark.sql.functions` are made for Spark Connect."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return connect


@pytest.fixture(params=["classic", "connect"])
def either(request: pytest.FixtureRequest, spark: SparkSession) -> Any:
    """The session, and one of Spark Connect, which it serves."""
    return spark if request.param == "classic" else request.getfixturevalue("connect_mode")
