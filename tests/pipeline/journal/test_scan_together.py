"""Both tables of a journal, read in one pass."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from dispatcher.journal import EVENTS, TABLES, read_rows
from pipeline.journal import Problem

from ...kit.segment_files import EventRow, TransitionRow, look_at, segment_path, write_segments
from .reading import divided, pairs_of

KINDS = [("rm", "AType", "A", "handled"), ("nm", "AType", "A", "failed"), ("rm", "BType", "B", "handled")]
MOVES = [("RMApp", "NEW", "START", "RUNNING", True), ("RMApp", "NEW", "KILL", "NEW", False)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three segments of nine frames of seven events, some of which make a transition."""

    def frame(number: int, first: int) -> tuple[list[EventRow], list[TransitionRow], bool]:
        events = [EventRow(kind=(number + n) % 3, entity=f"e{n}", started_at=first + n) for n in range(7)]
        moves = [TransitionRow(kind=n % 2, seq=first + n, entity=f"e{n}", at=first + n) for n in range(number % 3)]
        return events, moves, True

    return write_segments(tmp_path / "journal", [[partial(frame, number) for number in range(9)]] * 3, KINDS, MOVES)


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [
        {name: value for name, value in row.items() if value is not None}
        for batch in batches
        for row in batch.to_pylist()
    ]


@pytest.mark.long
@pytest.mark.parametrize(("rows_at_once", "coded"), [(1, False), (20, False), (1000, False), (1000, True)])
def test_one_pass_gives_the_rows_of_both_tables(journal: Path, rows_at_once: int, coded: bool) -> None:
    """The report's digests number the kinds of rows by one array of codes instead of five columns of text."""
    [parts] = divided(journal, 1)

    pairs = list(pairs_of(parts, pytest.fail, rows=rows_at_once, coded=coded))

    for place, table in enumerate(TABLES):
        assert rows([pair[place] for pair in pairs]) == list(read_rows(journal, table))
        for pair in pairs if coded else ():
            kinds = [pair[place].column(name) for name in table.kind_columns]
            assert len({kind.indices.buffers()[1].address for kind in kinds}) == 1


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8, 100])
def test_each_row_is_in_one_of_the_parts_in_order(journal: Path, tasks: int) -> None:
    segment = segment_path(journal, 2)
    data = bytearray(segment.read_bytes())
    data[1500] ^= 1  # the search for the next frame goes across borders of parts
    segment.write_bytes(data)
    lines: list[Problem] = []

    of_tasks = divided(journal, tasks)
    found = [pair[0] for parts in of_tasks for pair in pairs_of(parts, lines.append)]

    assert len(of_tasks) <= tasks
    assert rows(found) == list(read_rows(journal, EVENTS, on_damage=lambda _: None))
    assert len(lines) == 1


def test_a_segment_that_is_gone_is_in_a_part_too(journal: Path) -> None:
    """So that its reader reports it."""
    listed = look_at(journal).closed
    segment_path(journal, 3).unlink()
    found: list[Problem] = []

    for parts in divided(listed, 2):
        list(pairs_of(parts, found.append))

    assert [problem.segment for problem in found] == [segment_path(journal, 3).name]
