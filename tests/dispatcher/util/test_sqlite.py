"""Transactions of SQLite files; what the stores make of them and of errors is in the stores' tests."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dispatcher.util.sqlite import connect, transaction


def test_a_commit_that_fails_rolls_back_so_that_the_next_transaction_begins(tmp_path: Path) -> None:
    """A store whose commit found the disk full could begin no transaction again."""
    with closing(connect(tmp_path / "file.db", busy_timeout_s=0)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("CREATE TABLE a (x INTEGER PRIMARY KEY, y REFERENCES a DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(sqlite3.IntegrityError), transaction(connection):
            connection.execute("INSERT INTO a VALUES (1, 2)")

        with transaction(connection):
            connection.execute("INSERT INTO a VALUES (3, NULL)")

        assert connection.execute("SELECT x FROM a").fetchall() == [(3,)]
