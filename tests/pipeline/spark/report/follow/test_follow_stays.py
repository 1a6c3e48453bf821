from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from pipeline.spark.report.follow.follow import _settings
from pipeline.spark.report.follow.follow_stays import StayProcessor, Taken, no_memory, take_in, with_stays

COLUMNS = ["seq", "machine", "entity", "from_state", "event_type", "to_state", "at", "valid"]
ENDS = frozenset({("Job", "DONE")})
TODAY_NS = 1_790_000_000_123_456_789  # not a whole number of nanoseconds as a float


def moves(*rows: tuple[int, str, str, int]) -> pd.DataFrame:
    """Transitions of Job machines: seq, entity, `FROM TO`, at; refused where a `!` follows."""
    return pd.DataFrame(
        [
            (seq, "Job", entity, states.split()[0], "MOVE", states.split()[1].strip("!"), at, not states.endswith("!"))
            for seq, entity, states, at in rows
        ],
        columns=COLUMNS,
    )


def stays_in(taken: Taken) -> list[tuple[int, Any, Any]]:
    """seq, entered_seq and stay_ns of each row, with None where they are null."""
    rows = taken.rows[["seq", "entered_seq", "stay_ns"]].astype("object")
    return [tuple(row) for row in rows.where(rows.notna(), None).itertuples(index=False)]


def test_stay_is_from_entering_a_state_to_leaving_it() -> None:
    taken = take_in(moves((1, "a", "NEW RUNNING", TODAY_NS), (4, "a", "RUNNING DONE", TODAY_NS + 3)), no_memory(), ENDS)

    assert stays_in(taken) == [(1, None, None), (4, 1, 3)]


def test_a_stay_that_began_in_an_earlier_batch_is_found_when_it_ends() -> None:
    first = take_in(moves((1, "a", "NEW RUNNING", TODAY_NS), (2, "b", "NEW RUNNING", TODAY_NS)), no_memory(), ENDS)

    second = take_in(moves((5, "a", "RUNNING DONE", TODAY_NS + 7)), first.memory, ENDS)

    assert stays_in(second) == [(5, 1, 7)]
    assert second.memory.entity.tolist() == ["b"]  # a has come to its end


def test_rows_of_a_batch_may_come_in_any_order() -> None:
    taken = take_in(moves((4, "a", "RUNNING DONE", 30), (1, "a", "NEW RUNNING", 10)), no_memory(), ENDS)

    assert stays_in(taken) == [(4, 1, 20), (1, None, None)]


def test_transition_that_keeps_the_state_or_is_refused_ends_no_stay() -> None:
    taken = take_in(
        moves(
            (1, "a", "NEW RUNNING", 10),
            (2, "a", "RUNNING RUNNING", 20),
            (3, "a", "RUNNING DONE!", 30),
            (4, "a", "RUNNING DONE", 40),
        ),
        no_memory(),
        ENDS,
    )

    assert stays_in(taken) == [(1, None, None), (2, None, None), (3, None, None), (4, 1, 30)]


def test_a_batch_without_changes_of_state_keeps_the_memory() -> None:
    first = take_in(moves((1, "a", "NEW RUNNING", 10)), no_memory(), ENDS)

    second = take_in(moves((2, "a", "RUNNING RUNNING", 20)), first.memory, ENDS)

    assert second.memory.to_dict("list") == {
        "machine": ["Job"],
        "entity": ["a"],
        "seq": [1],
        "state": ["RUNNING"],
        "at": [10],
    }


def test_state_that_was_not_entered_by_a_transition_has_no_stay() -> None:
    """A host that comes back is a new machine under the old id, and begins in NEW."""
    taken = take_in(moves((1, "a", "NEW RUNNING", 10), (2, "a", "NEW RUNNING", 30)), no_memory(), ENDS)

    assert stays_in(taken) == [(1, None, None), (2, None, None)]


def test_a_stay_is_never_negative_when_the_clock_is_set_back() -> None:
    taken = take_in(moves((1, "a", "NEW RUNNING", 100), (2, "a", "RUNNING DONE", 40)), no_memory(), ENDS)

    assert stays_in(taken) == [(1, None, None), (2, 1, 0)]


def test_a_late_transition_is_returned_and_spoils_no_stay() -> None:
    first = take_in(moves((1, "a", "NEW RUNNING", 10), (5, "a", "RUNNING PAUSED", 50)), no_memory(), ENDS)

    late = take_in(moves((3, "a", "PAUSED RUNNING", 30)), first.memory, ENDS)
    last = take_in(moves((9, "a", "PAUSED DONE", 90)), late.memory, ENDS)

    assert stays_in(late) == [(3, None, None)]
    assert stays_in(last) == [(9, 5, 40)]


def test_processor_remembers_by_slot() -> None:
    tester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="TwsTester came with Spark 4.2").TwsTester
    slots = tester(StayProcessor(COLUMNS, ENDS))

    slots.testInPandas(3, moves((1, "a", "NEW RUNNING", TODAY_NS)))
    other = slots.testInPandas(4, moves((2, "a", "RUNNING DONE", TODAY_NS + 1)))
    same = slots.testInPandas(3, moves((2, "a", "RUNNING DONE", TODAY_NS + 1)))

    assert other.stay_ns.isna().tolist() == [True]
    assert same.stay_ns.tolist() == [1]
    assert slots.peekValueState("memory", 3) == ("[[],[],[],[],[]]",)


def test_state_is_also_kept_without_transform_with_state(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, "a", "NEW RUNNING", TODAY_NS), (2, "b", "NEW RUNNING", 5)], [(3, "a", "RUNNING DONE", TODAY_NS + 9)]
    for number, some in enumerate(rows):
        moves(*some).to_json(tmp_path / f"{number}.json", orient="records", lines=True)
    schema = spark.createDataFrame(moves(*rows[0])).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "*.json"))

    with _settings(spark):
        query = (
            with_stays(stream, ENDS, "applyInPandasWithState")
            .writeStream.format("memory")
            .queryName("stays")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()

    found = spark.table("stays").select("seq", "entered_seq", "stay_ns").orderBy("seq").collect()
    assert [tuple(row) for row in found] == [(1, None, None), (2, None, None), (3, 1, 9)]
