"""Databases to look up in."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest


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
