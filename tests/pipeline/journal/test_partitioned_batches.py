"""The rows of all partitions as Arrow batches, with seqs that are unique."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dispatcher.journal import EVENTS, TABLES, TRANSITIONS
from dispatcher.journal.conditions import Conditions
from pipeline.journal import Problem, read_batches
from pipeline.journal.damage import all_problems
from pipeline.journal.scan import plan
from pipeline.journal.whole import SEQS_PER_PARTITION, look_at_whole

from ...kit.segment_files import Table
from ...partitioned_journals import write_partitioned


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_partitioned(tmp_path / "journal", 2, 0, 3)


SEQS = [1, 2, *(2 * SEQS_PER_PARTITION + seq for seq in (1, 2, 3))]


def seqs(journal: Path, table: Table, conditions: Conditions | None = None) -> list[int]:
    batches = read_batches(journal, table, ["seq"], conditions=conditions)
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_rows_of_all_partitions_have_unique_seqs_in_order(journal: Path, table: Table) -> None:
    assert seqs(journal, table) == SEQS


def test_a_partition_by_itself_keeps_its_seqs(journal: Path) -> None:
    assert seqs(journal / "partition-2", EVENTS) == [1, 2, 3]


def test_a_condition_on_the_seq_skips_the_other_partitions(journal: Path) -> None:
    second = Conditions({"seq": (2 * SEQS_PER_PARTITION + 2, None)})

    assert seqs(journal, EVENTS, second) == SEQS[2:]
    assert seqs(journal, EVENTS, Conditions({"seq": (None, 2)})) == SEQS[:2]
    [[part]] = plan(look_at_whole(journal).summarized, TRANSITIONS, second)
    assert part.partition == 2


def test_damage_names_its_partition(journal: Path) -> None:
    segment = journal / "partition-2" / "segment-00000001.journal"
    segment.write_bytes(segment.read_bytes()[:-1])
    shutil.rmtree(journal / "partition-1")
    found: list[Problem] = []

    list(read_batches(journal, EVENTS, on_damage=found.append))

    assert found == list(all_problems(look_at_whole(journal)))
    assert [problem.segment for problem in found] == ["partition-1", "partition-2/segment-00000001.journal"]
    assert str(found[0]) == "partition-1: is missing; an unknown number of rows lost"
    assert str(found[1]).startswith("partition-2/segment-00000001.journal: 15 bytes from byte ")
    assert str(found[1]).endswith(" hold no intact frame; no row lost")
