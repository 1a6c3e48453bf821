"""Small hand-made journals, and the comparison of a job's table with literal rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


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
