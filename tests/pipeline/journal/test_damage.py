"""What readers without Spark say about each kind of damage, and that `verify` says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dispatcher.journal import EVENTS, verify
from pipeline.journal import Problem, read_batches

from ...kit.segment_files import Manifest, segment_path
from .. import damaged_journals
from ..damaged_journals import KINDS, Kind, Lost, write_sound_journal
from .reading import batches_where, divided, lost_in_all, pairs_of, problems


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_sound_journal(tmp_path / "journal")


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_each_kind_of_damage_is_listed_with_its_place_and_the_rows_lost(journal: Path, kind: Kind) -> None:
    """The report listed what the folder and the segments' ends show, and denied all other damage."""
    kind.damage(journal)

    found = problems(journal)

    assert sorted(map(Lost.of, found), key=repr) == sorted(kind.lost, key=repr)
    assert {problem.problem for problem in found} <= set(verify(journal).problems)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
@pytest.mark.parametrize("tasks", [1, 5])
def test_a_reader_meets_all_damage_once_in_however_many_parts(journal: Path, kind: Kind, tasks: int) -> None:
    kind.damage(journal)
    in_segments: list[Problem] = []
    met: list[Problem] = []

    rows = sum(batch.num_rows for batch in read_batches(journal, EVENTS, on_damage=met.append))
    for parts in divided(journal, tasks):
        list(pairs_of(parts, in_segments.append))

    assert rows == damaged_journals.EVENTS - kind.events
    assert met == problems(journal)
    assert set(in_segments) == {problem for problem in met if (journal / problem.segment).exists()} - {
        problem for problem in met if "manifest" in problem.problem
    }
    assert len(in_segments) == len(set(in_segments))


def test_a_segment_that_disappears_after_it_was_listed_is_damage(journal: Path) -> None:
    [parts] = divided(journal, 1)
    segment_path(journal, 2).unlink()
    met: list[Problem] = []

    list(pairs_of(parts, met.append))

    assert list(map(str, met)) == [
        "segment-00000002.journal: is missing; 20 events and an unknown number of transitions lost"
    ]


def test_a_filter_that_skips_a_damaged_frame_does_not_meet_it(journal: Path) -> None:
    KINDS[0].damage(journal)
    met: list[Problem] = []

    rows = list(batches_where(journal, EVENTS, ranges={"seq": (21, 24)}, on_damage=met.append))

    assert ([row["seq"] for batch in rows for row in batch.to_pylist()], met) == ([21, 22, 23, 24], [])


def test_a_torn_tail_of_an_open_segment_is_no_damage(journal: Path) -> None:
    """Recovery cuts it off: a journal that is written, or whose writer has died, is honest."""
    last = segment_path(journal, 3)
    last.rename(journal / f".{last.name}.open")
    (journal / f".{last.name}.open").write_bytes((journal / f".{last.name}.open").read_bytes()[:-100])
    Manifest(1, 2).write(journal, sync=False)

    assert problems(journal) == []


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([(0, 0), (0, 0)], "no row"),
        ([(None, None)], "an unknown number of rows"),
        ([(1, 0), (2, 1)], "3 events and 1 transition"),
        ([(1200, None), (None, 7)], "at least 1,200 events and 7 transitions"),
    ],
)
def test_the_rows_lost_in_all_are_told_as_far_as_known(lost: list[tuple[int | None, int | None]], said: str) -> None:
    assert lost_in_all([Problem("a", None, None, "a: cut", *numbers) for numbers in lost]) == said
