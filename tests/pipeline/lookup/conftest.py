"""Databases to look up in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ...kit import databases


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Callable[..., Path]:
    """Makes an SQLite file by a script."""
    return partial(databases.sqlite_file, tmp_path / "data.db")
