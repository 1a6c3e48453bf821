"""Which closed segments retention removes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dispatcher.config import JournalConfig
from dispatcher.journal.format.segments import segment_number, segments


def has_retention(config: JournalConfig) -> bool:
    return config.retention_s is not None or config.retention_bytes is not None


def surplus(journal: Path, config: JournalConfig, needed: int) -> Iterator[Path]:
    """The segments that are too old, or beyond the size, oldest first; none from number `needed` on."""
    sizes: dict[Path, os.stat_result] = {}
    for path in segments(journal):
        with contextlib.suppress(FileNotFoundError):  # somebody else has removed it
            sizes[path] = path.stat()
    total = sum(status.st_size for status in sizes.values())
    for path, status in sizes.items():
        too_old = config.retention_s is not None and time.time() - status.st_mtime > config.retention_s
        too_many = config.retention_bytes is not None and total > config.retention_bytes
        if segment_number(path) >= needed or not (too_old or too_many):
            return
        yield path
        total -= status.st_size
