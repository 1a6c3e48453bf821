"""The rows of all partitions as Arrow batches, with seqs that are unique."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dispatcher.journal import EVENTS, TABLES, TRANSITIONS
from pipeline.journal import Problem, read_batches

from ...kit.segment_files import Table
from ...partitioned_journals import write_partitioned
from .reading import batches_where, planned, problems


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_partitioned(tmp_path / "journal", 2, 0, 3)


SEQS = [1, 2, *(2 * 10**12 + seq for seq in (1, 2, 3))]


def seqs(journal: Path, table: Table, **conditions: Any) -> list[int]:
    batches = batches_where(journal, table, **conditions)
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_rows_of_all_partitions_have_unique_seqs_in_order(journal: Path, table: Table) -> None:
    assert seqs(journal, table) == SEQS


def test_a_partition_by_itself_keeps_its_seqs(journal: Path) -> None:
    assert seqs(journal / "partition-2", EVENTS) == [1, 2, 3]


def test_a_condition_on_the_seq_skips_the_other_partitions(journal: Path) -> None:
    second = {"seq": (2 * 10**12 + 2, None)}

    assert seqs(journal, EVENTS, ranges=second) == SEQS[2:]
    assert seqs(journal, EVENTS, ranges={"seq": (None, 2)}) == SEQS[:2]
    [[part]] = planned(journal, TRANSITIONS, ranges=second)
    assert part.partition == 2


def test_damage_names_its_partition(journal: Path) -> None:
    segment = journal / "partition-2" / "segment-00000001.journal"
    segment.write_bytes(segment.read_bytes()[:-1])
    shutil.rmtree(journal / "partition-1")
    found: list[Problem] = []

    list(read_batches(journal, EVENTS, on_damage=found.append))

    assert found == problems(journal)
    assert [problem.segment for problem in found] == ["partition-1", "partition-2/segment-00000001.journal"]
    assert str(found[0]) == "partition-1: is missing; an unknown number of rows lost"
    assert str(found[1]).startswith("partition-2/segment-00000001.journal: 15 bytes from byte ")
    assert str(found[1]).endswith(" hold no intact frame; no row lost")
