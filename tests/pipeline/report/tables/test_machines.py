"""Tables of transitions and of stays: each against literal rows, and however a journal is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dispatcher.journal import EVENTS, TRANSITIONS

from ....kit import tries
from ...journal_builder import SECOND, table_of
from .at_hand import NONE, Move, Tables, in_order, move, of_parts, of_relations

pytestmark = pytest.mark.long

MACHINE = [
    ("M", "NEW", "GO", "RUNNING"),
    ("M", "RUNNING", "WAIT", "WAITING"),
    ("M", "WAITING", "GO", "RUNNING"),
    ("M", "RUNNING", "END", "DONE"),
    ("M", "DONE", "END", "DONE"),
]
"""The transitions that the machine M declares: from NEW to DONE."""
RETURNING = [
    move(1, "h1", "NEW GO RUNNING", at=0),
    move(2, "h1", "RUNNING END DONE", at=10),
    move(3, "h1", "NEW GO RUNNING", at=99),
]
"""A machine that ends, and a new one under its id."""
MIXED = [
    *RETURNING,
    move(4, "b", "NEW GO RUNNING", at=100),
    move(5, "b", "RUNNING PING RUNNING", at=101),
    move(6, "c", "NEW GO RUNNING", at=101),
    move(7, "b", "RUNNING WAIT WAITING", at=104),
    move(8, "c", "RUNNING END DONE", at=105),
    move(9, "b", "WAITING GO RUNNING", at=114),
    move(10, "b", "RUNNING END RUNNING", at=115, valid=False),
    move(11, "b", "RUNNING END DONE", at=120),
    move(12, "h1", "RUNNING WAIT WAITING", at=130),
]
"""Lives that overlap, with a self-transition and a refusal; b and c end, h1 waits."""

# -- stays ------------------------------------------------------------------------------------------------------------


def tables_of(*parts: list[Move], merged: slice = NONE) -> Tables:
    """Of transitions, each part digested apart, and some of the parts merged before the others."""
    tables = [(table_of(EVENTS, []), table_of(TRANSITIONS, rows)) for rows in parts]
    return of_parts(tables, MACHINE, merged=merged)


def test_time_in_state_counts_what_was_entered_and_left() -> None:
    found = tables_of(
        [
            move(1, "a", "NEW GO RUNNING", at=0),
            move(2, "a", "RUNNING WAIT WAITING", at=4),
            move(3, "b", "NEW GO RUNNING", at=4),
            move(4, "b", "RUNNING PING RUNNING", at=5),
            move(5, "b", "RUNNING OOPS RUNNING", at=6, valid=False),
            move(6, "b", "RUNNING END DONE", at=14),
        ]
    )

    assert found["time_in_state"] == [("M", "RUNNING", 2, 4.0, 10.0, 10.0, 10.0)]


def test_stays_of_zero_length_are_ordered_by_seq() -> None:
    found = tables_of(
        [
            move(2, "a", "RUNNING WAIT WAITING", at=3),
            move(1, "a", "NEW GO RUNNING", at=3),
            move(3, "a", "WAITING GO RUNNING", at=3),
        ]
    )

    stays = [(row["state"], row["max_s"]) for row in found.dicts("time_in_state")]
    assert sorted(stays) == [("RUNNING", 0.0), ("WAITING", 0.0)]


def test_a_returning_entity_has_no_stay_in_new() -> None:
    """The time since the old machine was lost is not time that the new one spent in NEW."""
    for parts in ([RETURNING], [RETURNING[:2], RETURNING[2:]], [RETURNING[:1], RETURNING[1:]]):
        rows = tables_of(*parts).dicts("time_in_state")
        assert [(row["state"], row["max_s"]) for row in rows] == [("RUNNING", 10.0)]


def test_a_part_has_its_span_and_the_longest_stays_that_it_has_begun_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.report.digests.transition_digest.ROWS_AT_ONCE", 8)
    monkeypatch.setattr("pipeline.report.digests.transition_digest.LONGEST", 1)

    part = tables_of(MIXED)

    assert [(row["entity"], row["state"], row["seq"], row["stay_ns"]) for row in part.dicts("part_long_stay")] == [
        ("h1", "RUNNING", 1, 10 * SECOND)
    ]
    assert part.dicts("part_transition_totals") == [{"count": 12, "first_at": 0, "last_at": 130 * SECOND}]


def test_of_most_transitions_only_the_figures_are_kept() -> None:
    of_app = "NEW START NEW_SAVING / NEW_SAVING APP_NEW_SAVED SUBMITTED / ACCEPTED ATTEMPT_LAUNCHED ACCEPTED"
    of_container = "NEW START ALLOCATED / ALLOCATED ACQUIRED ACQUIRED / ACQUIRED RELEASED RELEASED"
    moves = [("RMApp", what) for what in f"{of_app} / ACCEPTED APP_RUNNING_ON_NODE ACCEPTED".split(" / ")]
    moves += [("RMContainer", what) for what in of_container.split(" / ")] + [("RMNode", "NEW STARTED RUNNING")]

    kept = tables_of([move(seq, machine, what, machine=machine) for seq, (machine, what) in enumerate(moves)])

    assert sorted(row["seq"] for row in kept.dicts("move")) == [0, 1, 3, 4, 6]


@pytest.mark.parametrize("cuts", [(3,), (4, 9), tuple(range(1, 12))])
def test_cutting_a_journal_anywhere_leaves_its_tables_the_same(cuts: tuple[int, ...]) -> None:
    parts = [MIXED[start:end] for start, end in zip((0, *cuts), (*cuts, len(MIXED)), strict=True)]

    whole, cut = tables_of(MIXED), tables_of(*parts)

    for name in ("time_in_state", "stuck_entities", "transition_counts", "stretch", "long_stay", "stay_group"):
        assert cut[name] == whole[name], name
    assert [row["entity"] for row in cut.dicts("stretch")] == ["h1"]  # the others have ended


AFTER = {"NEW": ["RUNNING"], "RUNNING": ["WAITING", "DONE"], "WAITING": ["RUNNING"], "DONE": ["NEW"]}


@st.composite
def lives(draw: st.DrawFn) -> list[Move]:
    """Machines that go on at random; one that is done may come back under its id. Some are seen from the middle on."""
    states = {entity: draw(st.sampled_from(["NEW", "RUNNING"])) for entity in "abc"}
    rows, at = [], 0
    for seq in range(1, draw(st.integers(1, 30))):
        entity = draw(st.sampled_from("abc"))
        if states[entity] == "DONE":
            states[entity] = "NEW"
        before, after = states[entity], draw(st.sampled_from(AFTER[states[entity]]))
        at += draw(st.integers(0, 3))
        rows.append(move(seq, entity, f"{before} GO {after}", at=at))
        states[entity] = after
    return rows


@settings(max_examples=tries(4), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(lives(), st.data())
def test_lives_cut_anywhere_and_merged_in_any_grouping_have_the_same_tables(
    rows: list[Move], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=4)))
    parts = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    first = data.draw(st.integers(0, len(parts)))
    last = data.draw(st.integers(first, len(parts)))

    whole = tables_of(rows)
    grouped = tables_of(*parts, merged=slice(first, last))

    for name in ("time_in_state", "stuck_entities", "transition_counts", "long_stay"):
        assert grouped[name] == whole[name], name
    assert still_open(grouped) == still_open(whole)


def still_open(tables: Tables) -> list[tuple[Any, ...]]:
    """The stays that go on. Where a life began is forgotten once it has ended, and the machine may come back."""
    rows = [tuple(row[name] for name in _LAST) for row in tables.dicts("stretch")]
    return in_order(row for row in rows if row[1] != "DONE")


_LAST = ("entity", "to_state", "last_seq", "last_at")


def test_a_stay_longer_than_nearly_all_others_is_stuck() -> None:
    """A machine that is in no final state has a stay that goes on."""
    names = ("machine", "entity", "state", "seq", "from_at", "stay_ns")
    ended = [("M", "a", "RUNNING", 1, 0, 7 * SECOND), ("M", "b", "RUNNING", 2, 5, 5 * SECOND)]
    still_open = [("c", "RUNNING", 9), ("d", "RUNNING", 94 * SECOND), ("e", "UNKNOWN", 9), ("f", "DONE", 9)]
    time = {"machine": "M", "state": "RUNNING", "count": 100, "p50_s": 1.0, "p95_s": 2.0, "p99_s": 5.0, "max_s": 7.0}

    found = of_relations(
        long_stay=[dict(zip(names, row, strict=True)) for row in ended],
        stretch=[
            {"machine": "M", "entity": entity, "to_state": state, "last_seq": 3, "last_at": at}
            for entity, state, at in still_open
        ],
        time_in_state=[time],
        declared=MACHINE,
        end_at=100 * SECOND,
    )["stuck_entities"]

    assert found == in_order(
        [
            ("M", "c", "RUNNING", 9, pytest.approx(100.0), 5.0, True),
            ("M", "a", "RUNNING", 0, 7.0, 5.0, False),
            ("M", "d", "RUNNING", 94 * SECOND, 6.0, 5.0, True),
        ]
    )
