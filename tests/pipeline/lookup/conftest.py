"""Databases to look up in."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests; each makes tables of its own. Started again if a test has stopped it."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'central-dispatcher[postgres]'")
    from .postgres_server import PostgresServer, PostgresUnavailableError

    try:
        server = PostgresServer()
    except PostgresUnavailableError as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Callable[..., Path]:
    """Makes an SQLite file by a script."""

    def make(script: str) -> Path:
        path = tmp_path / "data.db"
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        return path

    return make
