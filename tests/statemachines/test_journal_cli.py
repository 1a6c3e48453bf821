"""`dispatcher journal state`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.journal import EVENTS
from statemachines.journal_cli import LISTED, REMARKS_SHOWN, format_time, parse_moment

from ..kit.commands import Ended, run_here
from .simulation.replays import app, node, run, task, workload
from .test_time_travel import Moment

S = 1_000_000_000


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Submitted after 50 ms, its master registers after 1,050 ms, its only task ends after 6,050 ms."""
    path = tmp_path_factory.mktemp("cli") / "journal"
    run(workload(node(), app(submit_ms=50, tasks=(task(5000),))), path)
    return path


def invoke(journal: Path, *args: str) -> Ended:
    return run_here("journal", "state", journal, *args)


def row(seq: int, entity: str, step: str, machine: str = "RMNode") -> dict[str, Any]:
    from_state, event_type, to_state = step.split()
    names = {"machine": machine, "entity": entity, "from_state": from_state, "event_type": event_type}
    return {"seq": seq, **names, "to_state": to_state, "at": seq * S, "valid": True}


class FakeJournal(list[dict[str, Any]]):
    """Its transitions. Its first event has the seq of its first transition."""

    def __init__(self) -> None:
        super().__init__()
        self.damages: list[str] = []

    def read_rows(
        self, path: Path, table: object, *, on_damage: Callable[[str], None] | None = None
    ) -> Iterator[dict[str, Any]]:
        for damage in self.damages:
            assert on_damage is not None
            on_damage(damage)
        yield from self[:1] if table is EVENTS else self


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> FakeJournal:
    journal = FakeJournal()
    monkeypatch.setattr("statemachines.journal_cli.read_rows", journal.read_rows)
    return journal


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_end_of_the_journal_is_shown_by_default(journal: Path) -> None:
    result = invoke(journal)

    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("after seq ")
    assert lines[0].endswith(", 1970-01-01T00:00:06.05Z: the journal has no later transition")
    assert [line.split() for line in lines[2:7]] == [
        ["machine", "state", "entities"],
        ["RMNode", "RUNNING", "1"],
        ["RMApp", "FINISHED", "1"],
        ["RMAppAttempt", "FINISHED", "1"],
        ["RMContainer", "COMPLETED", "2"],
    ]
    assert lines[8].split() == ["machine", "entity", "state", "since", "seq", "since", "transitions"]
    assert len(lines[9:]) == 5
    node_line = lines[-1].split()
    assert (node_line[:3], node_line[4]) == (["RMNode", "n1:45454", "RUNNING"], "1970-01-01T00:00:00Z")


@pytest.mark.parametrize("at", ["1970-01-01T00:00:01.049999999Z", "@1.049999999"])
def test_states_at_a_time(journal: Path, at: str) -> None:
    result = invoke(journal, "--at", at, "--summary")

    lines = [line.split() for line in result.out.splitlines()[3:]]
    assert lines == [
        ["RMNode", "RUNNING", "1"],
        ["RMApp", "ACCEPTED", "1"],
        ["RMAppAttempt", "LAUNCHED", "1"],
        ["RMContainer", "RUNNING", "1"],
    ]
    assert "1970-01-01T00:00:00.05Z: the last transition up to this moment" in result.out


def test_states_at_a_seq(journal: Path) -> None:
    assert invoke(journal, "--at", "1").out.splitlines() == [
        "after seq 1, 1970-01-01T00:00:00Z: the last transition up to this moment",
        "",
        "machine  state    entities",
        "RMNode   RUNNING  1",
        "",
        "machine  entity    state    since seq  since                 transitions",
        "RMNode   n1:45454  RUNNING  1          1970-01-01T00:00:00Z  1",
    ]


def test_moment_before_all_has_nothing(journal: Path) -> None:
    result = invoke(journal, "--at", "0")

    assert (result.code, result.out) == (0, "no transition up to this moment\n")


def test_one_machine_and_one_entity_can_be_chosen(journal: Path) -> None:
    by_machine = invoke(journal, "--machine", "rmapp", "--format", "json")
    by_entity = invoke(journal, "--entity", "n1:45454", "--format", "json")
    by_both = invoke(journal, "--machine", "RMApp", "--entity", "n1:45454", "--format", "json")

    entities = [json.loads(each.out)["entities"] for each in (by_machine, by_entity, by_both)]
    assert [[each["entity"] for each in found] for found in entities] == [["application_0_0001"], ["n1:45454"], []]


def test_json_has_all_that_is_known(journal: Path) -> None:
    found = json.loads(invoke(journal, "--format", "json", "--at", "1").out)

    assert found == {
        "seq": 1,
        "at": 0,
        "is_end": False,
        "counts": {"RMNode": {"RUNNING": 1}},
        "replaced": {},
        "disagreements": 0,
        "remarks": [],
        "entities": [
            {
                "machine": "RMNode",
                "entity": "n1:45454",
                "state": "RUNNING",
                "since_seq": 1,
                "since_at": 0,
                "transitions": 1,
                "machines": 1,
                "data": None,
            }
        ],
    }


def test_json_of_the_summary_and_of_nothing_is_sound(journal: Path) -> None:
    summary = json.loads(invoke(journal, "--format", "json", "--summary").out)
    nothing = json.loads(invoke(journal, "--format", "json", "--at", "0").out)

    assert "entities" not in summary
    assert summary["counts"]["RMContainer"] == {"COMPLETED": 2}
    assert (nothing["seq"], nothing["entities"]) == (None, [])


def test_latest_are_listed_and_the_rest_counted_unless_all_are_wanted(rows: FakeJournal) -> None:
    rows += [row(seq, f"n{seq}:1", "NEW STARTED RUNNING") for seq in range(1, LISTED + 4)]

    some = invoke(Path("any")).out.splitlines()
    all_of_them = invoke(Path("any"), "--all").out.splitlines()

    header = 6
    assert [line.split()[1] for line in some[header:-1]] == [f"n{seq}:1" for seq in range(LISTED + 3, 3, -1)]
    assert some[-1] == "... and 3 more, which changed before these: --all lists them"
    assert [line.split()[1] for line in all_of_them[header:]] == [f"n{seq}:1" for seq in range(LISTED + 3, 0, -1)]


def test_machines_that_were_replaced_are_shown_and_noted(rows: FakeJournal) -> None:
    rows += [row(1, "n:1", "NEW STARTED RUNNING"), row(2, "n:1", "RUNNING EXPIRE LOST")]
    rows += [row(3, "n:1", "NEW STARTED RUNNING")]

    result = invoke(Path("any"), "--summary")

    assert result.code == 0
    assert result.out.splitlines()[-3:] == [
        "Machines replaced by a new one with the same id, in their last states:",
        "machine  state  entities",
        "RMNode   LOST   1",
    ]
    assert result.err == "note: seq 3: RMNode n:1: a new machine has its id; the previous one was in LOST\n"


def test_removed_start_of_a_journal_is_not_a_disagreement(rows: FakeJournal) -> None:
    rows += [row(7, "n:1", "RUNNING STATUS_UPDATE RUNNING")]

    result = invoke(Path("any"))

    assert result.code == 0
    assert result.out.splitlines()[-1].split() == ["RMNode", "n:1", "RUNNING", "-", "-", "1"]
    assert result.err == "note: seq 7: RMNode n:1: begins in RUNNING, but the initial state is NEW\n"


def test_disagreements_are_errors_and_the_exit_code_says_so(rows: FakeJournal) -> None:
    rows += [row(1, "n:1", "NEW STARTED RUNNING"), row(2, "n:1", "RUNNING EXPIRE DECOMMISSIONED")]
    rows += [row(seq, "g", "A GO B", "Gadget") for seq in range(3, REMARKS_SHOWN + 6)]

    result = invoke(Path("any"), "--summary")

    assert result.code == 1
    assert "RMNode   DECOMMISSIONED  1" in result.out
    lines = result.err.splitlines()
    assert lines[0] == ("note: seq 3: Gadget g: no machine has this name: its states are followed unchecked")
    assert lines[1] == "disagreement: seq 4: Gadget g: is in B, but A -> B on GO begins in A"
    assert lines[-3:] == [
        "... and 2 more: begins in a state in which the entity is not: earlier transitions are missing",
        "disagreement: seq 2: RMNode n:1: the table has no RUNNING -> DECOMMISSIONED on EXPIRE",
        "13 disagreements between the journal and the tables; the journal was followed",
    ]


def test_damage_is_reported_once_and_sets_the_exit_code(rows: FakeJournal) -> None:
    rows += [row(1, "n:1", "NEW STARTED RUNNING")]
    rows.damages += ["segment-00000002.journal: is missing"]

    result = invoke(Path("any"), "--summary")

    assert (result.code, result.err) == (1, "damage: segment-00000002.journal: is missing\n")
    assert "RMNode   RUNNING  1" in result.out


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_unknown_machine_is_answered_with_the_known_machines(journal: Path) -> None:
    assert invoke(journal, "--machine", "rmap").err.startswith(
        "dispatcher: no state machine 'rmap'; expected one of rmapp, "
    )


def test_undeclared_machine_can_be_chosen_if_the_journal_has_it(rows: FakeJournal) -> None:
    rows += [row(1, "g", "A GO B", "Gadget"), row(2, "n:1", "NEW STARTED RUNNING")]

    assert json.loads(invoke(Path("any"), "--machine", "gadget", "-f", "json").out)["counts"] == {"Gadget": {"B": 1}}


def test_folder_without_a_journal_is_rejected(tmp_path: Path) -> None:
    assert (invoke(tmp_path).code, invoke(tmp_path).out) == (2, "")


@pytest.mark.parametrize(
    "text",
    [
        *["", "yesterday", "-5", "1.5", "12 ", "1" * 19, "\u0663", "@", "@-1", "@1e9", "@1.0000000001", "@12\n"],
        *["10:00", "2026-13-01", "2026-11-21T10", "2026-11-21T25:00:00Z", "2026-11-21T10:00.5"],
        *["2026-11-21T10:00:00+99:00", "2026-11-21T10:00:00X", "0001-01-01T00:00+23:59"],
    ],
)
def test_text_that_is_not_a_moment_is_rejected_in_one_line(text: str, journal: Path) -> None:
    done = invoke(journal, f"--at={text}")

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(
        f"dispatcher: --at {text!r}: not a moment of a journal; give the seq of an event (12345)"
    )


# -- moments ----------------------------------------------------------------------------------------------------------

TEN = 1_795_255_200 * S  # 2026-11-21T10:00:00Z


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", Moment(seq=0)),
        ("12345", Moment(seq=12345)),
        ("20261121", Moment(seq=20261121)),
        ("@0", Moment(at=0)),
        ("@1700000000.5", Moment(at=1_700_000_000_500_000_000)),
        ("@1700000000.000000001", Moment(at=1_700_000_000_000_000_001)),
        ("2026-11-21T10:00:00Z", Moment(at=TEN)),
        ("2026-11-21T10:00:00", Moment(at=TEN)),
        ("2026-11-21 10:00", Moment(at=TEN)),
        ("2026-11-21", Moment(at=TEN - 36_000 * S)),
        ("2026-11-21Z", Moment(at=TEN - 36_000 * S)),
        ("2026-11-21T11:30:00+01:30", Moment(at=TEN)),
        ("2026-11-21T04:00:00-0600", Moment(at=TEN)),
        ("2026-11-21T10:00:00.25Z", Moment(at=TEN + S // 4)),
        ("2026-11-21T10:00:00.123456789+00:00", Moment(at=TEN + 123_456_789)),
        ("1969-12-31T23:59:59.5Z", Moment(at=-S // 2)),
    ],
)
def test_moment_is_a_seq_or_a_time_to_the_nanosecond(text: str, moment: Moment) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (TEN + 50_000_000, "2026-11-21T10:00:00.05Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
    ],
)
def test_time_is_printed_as_it_can_be_given(at: int, text: str) -> None:
    assert format_time(at) == text
    assert parse_moment(text) == Moment(at=at)
