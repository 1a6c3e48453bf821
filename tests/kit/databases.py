"""Databases in files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


def sqlite_file(path: Path, script: str, insert: str = "", rows: Iterable[Sequence[Any]] = ()) -> Path:
    """Run a script in the database of a file, which is made; `insert`: a statement for each of the rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        if insert:
            connection.executemany(insert, rows)
        connection.commit()
    return path
