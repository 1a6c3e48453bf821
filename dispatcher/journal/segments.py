"""Names of the journal's segments, and which of them there are."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.journal.schema import Table

_NUMBER = re.compile(r"-(\d+)\.jsonl$")


def segment_path(journal: Path, table: Table, number: int) -> Path:
    """Where a closed segment is."""
    return journal / table.name / f"{table.name}-{number:08d}.jsonl"


def open_segment_path(journal: Path, table: Table, number: int) -> Path:
    """Where a segment is while it is written: a name that Spark and `segments` pass over."""
    return journal / table.name / f".{table.name}-{number:08d}.jsonl.open"


def segments(journal: Path, table: Table) -> list[Path]:
    """The closed segments of a table, oldest first."""
    return sorted((journal / table.name).glob(f"{table.name}-*.jsonl"), key=segment_number)


def open_segments(journal: Path, table: Table) -> list[Path]:
    """Segments that a writer has open, or left open when it died."""
    return sorted((journal / table.name).glob(f".{table.name}-*.jsonl.open"))


def closed_path(open_path: Path) -> Path:
    """Where an open segment is once it is closed."""
    return open_path.with_name(open_path.name.removeprefix(".").removesuffix(".open"))


def segment_number(path: Path) -> int:
    """The number in a segment's name."""
    match = _NUMBER.search(path.name.removesuffix(".open"))
    return int(match.group(1)) if match else 0
