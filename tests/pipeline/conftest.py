"""The database server that tests of lookups share, and a journal that a test builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .journal_builder import JournalBuilder
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
def journal(tmp_path: Path) -> JournalBuilder:
    from .journal_builder import JournalBuilder  # needs the package pyarrow

    return JournalBuilder(tmp_path / "journal")
