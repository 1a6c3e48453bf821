"""What tests of caches share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.streaming import PostgresResults, SqliteResults

from ...counting_server import CountingServer

_numbers = itertools.count()


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running


@pytest.fixture
def sqlite_results(tmp_path: Path) -> Callable[..., SqliteResults]:
    return lambda **options: SqliteResults(tmp_path / "results.db", **options)


@pytest.fixture
def postgres_results(request: pytest.FixtureRequest) -> Callable[..., PostgresResults]:
    """A table of the test's own."""
    server = request.getfixturevalue("postgres")
    server.start()
    table = f"results_{next(_numbers)}"
    server.execute(f"DROP TABLE IF EXISTS {table}")
    return lambda **options: PostgresResults(**{"conninfo": server.conninfo, "table": table, **options})
