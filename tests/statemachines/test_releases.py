"""Transitions from logs, checked against the tables of Hadoop's releases."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from statemachines.conformance import UnknownReleaseError, arcs_of, releases_with, violation, wrong_refusal
from statemachines.releases import mapreduce, nodemanager, resourcemanager
from statemachines.releases.differences import ANY, CURRENT, EARLY, RELEASES, ReleaseArc, differences

from .test_tables import FACTORIES, HADOOP_CLASSES

ROWS = {  # pairs of a state and an event that the older releases declare: 2.4, 2.7
    "RMApp": (55, 70),
    "RMAppAttempt": (67, 67),
    "RMContainer": (32, 33),
    "RMNode": (15, 25),
    "MRJob": (159, 159),
    "MRTask": (37, 38),
    "MRTaskAttempt": (113, 114),
    "NMApplication": (27, 27),
    "NMContainer": (43, 48),
    "LocalizedResource": (7, 8),
}


def current(machine: str) -> frozenset[ReleaseArc]:
    return frozenset(
        ReleaseArc(row.from_state.name, row.event.name, state.name)
        for row in FACTORIES[machine].transitions()
        for state in row.to_states
    )


@pytest.mark.parametrize("machine", FACTORIES)
def test_each_listed_arc_is_hadoop_3s_exactly_if_it_names_3(machine: str) -> None:
    listed = differences(machine, current(machine))

    assert {arc for arc, releases in listed.items() if CURRENT in releases} == listed.keys() & current(machine)


@pytest.mark.parametrize("machine", FACTORIES)
def test_each_machine_has_listed_arcs_which_name_their_releases_in_order_and_not_all(machine: str) -> None:
    listed = differences(machine, current(machine))

    assert listed
    for arc, releases in listed.items():
        assert releases == tuple(release for release in (EARLY, *RELEASES) if release in releases) != (), arc
        assert not set(RELEASES) <= set(releases), f"{arc}: on this arc the releases agree"


@pytest.mark.parametrize("module", [resourcemanager, mapreduce, nodemanager])
def test_what_is_new_in_hadoop_3_is_in_its_table_and_in_no_row_of_its_own(module: ModuleType) -> None:
    rows = [line.split(",") for line in module.ROWS.splitlines()]

    assert {row[0] for row in rows} <= FACTORIES.keys()
    for machine, names in module.NEW_IN_3.items():
        new = set(names.split())
        assert new <= {name for arc in current(machine) for name in arc}
        assert not [row for row in rows if row[0] == machine and not new.isdisjoint(row[1:4])]


@pytest.mark.parametrize("machine", FACTORIES)
def test_a_release_has_the_rows_that_it_declares(machine: str) -> None:
    rows = tuple(sum(map(len, arcs_of(machine, release).values())) for release in ("2.4", "2.7"))

    assert rows == ROWS[machine]
    assert sum(map(len, arcs_of(machine, "3").values())) == len(list(FACTORIES[machine].transitions()))


@pytest.mark.parametrize("release", [*RELEASES, ANY])
@pytest.mark.parametrize("machine", FACTORIES)
def test_in_each_release_every_state_is_reachable(machine: str, release: str) -> None:
    table = arcs_of(machine, release)
    reached = {FACTORIES[machine].initial_state.name}

    while more := {to for state in reached for targets in table[state].values() for to in targets} - reached:
        reached |= more

    assert reached == set(table)


@pytest.mark.parametrize("machine", FACTORIES)
def test_a_transition_is_allowed_by_the_releases_that_have_it_and_by_no_other(machine: str) -> None:
    for arc in {*differences(machine, current(machine)), *current(machine)}:
        having = releases_with(machine, arc.from_state, arc.to_state, arc.event)
        allowing = [
            release
            for release in RELEASES
            if violation(machine, arc.from_state, arc.to_state, arc.event, release) is None
        ]

        assert allowing == [release for release in having if release != EARLY], arc
        assert violation(machine, arc.from_state, arc.to_state, arc.event, ANY) is None


@pytest.mark.parametrize(
    ("machine", "transition", "releases"),
    [
        ("RMApp", "NEW NEW_SAVING", ("2.4", "2.7", "3")),
        ("rmapp", "NEW SUBMITTED", ("2.0", "2.4", "2.7", "3")),  # START before 2.3, RECOVER since
        ("RMNode", "RUNNING SHUTDOWN", ("3",)),
        ("NMContainer", "LOCALIZING LOCALIZED", ("2.4", "2.7")),
        ("MRTaskAttempt", "FAILED RUNNING", ()),
    ],
)
def test_a_transition_without_its_event_is_of_each_release_with_any_event(
    machine: str, transition: str, releases: tuple[str, ...]
) -> None:
    assert releases_with(machine, *transition.split()) == releases


def test_a_refusal_is_right_in_a_release_whose_table_lacks_the_event() -> None:
    arguments = ("RMContainer", "RUNNING", "EXPIRE")  # only Hadoop 2 ignores it

    assert [wrong_refusal(*arguments, release) is None for release in (*RELEASES, ANY)] == [False, False, True, True]
    assert wrong_refusal("RMNode", "SHUTDOWN", "EXPIRE", "2.7") == "RMNode of Hadoop 2.7 has no state SHUTDOWN"


@pytest.mark.parametrize("release", ["", "2", "2.0", "2.7.3", "3.3"])
def test_a_release_whose_tables_are_unknown_is_refused(release: str) -> None:
    with pytest.raises(UnknownReleaseError) as refused:
        violation("RMApp", "NEW", "NEW_SAVING", release=release)

    assert refused.value.release == release
    assert str(refused.value) == f"no tables of Hadoop '{release}'; expected one of 2.4, 2.7, 3, or 'any'"


# -- one release ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", FACTORIES)
def test_only_declared_transitions_are_allowed_and_without_an_event_any_that_leads_there(machine: str) -> None:
    factory = FACTORIES[machine]
    declared = {(row.from_state, row.event, to_state) for row in factory.transitions() for to_state in row.to_states}
    states = list(type(factory.initial_state))
    event_types = list(type(next(factory.transitions()).event))

    allowed = {
        (from_state, event_type, to_state)
        for from_state in states
        for event_type in event_types
        for to_state in states
        if violation(machine, from_state.name, to_state.name, event_type.name) is None
    }

    without = {(one, other) for one in states for other in states if violation(machine, one.name, other.name) is None}

    assert allowed == declared
    assert without == {(from_state, to_state) for from_state, _, to_state in declared}


@pytest.mark.parametrize(
    ("from_state", "to_state", "event", "why"),
    [
        ("NEWISH", "RUNNING", "T_KILL", "MRTask has no state NEWISH"),
        ("NEW", "DONE", None, "MRTask has no state DONE"),
        ("NEW", "KILLED", "T_STOP", "MRTask: NEW does not accept T_STOP, only T_KILL, T_RECOVER, T_SCHEDULE"),
        ("NEW", "KILLED", "T_SCHEDULE", "MRTask: T_SCHEDULE does not lead from NEW to KILLED, only to SCHEDULED"),
        (
            "SUCCEEDED",
            "KILLED",
            None,
            "MRTask: no event leads from SUCCEEDED to KILLED, only to FAILED, SCHEDULED, SUCCEEDED",
        ),
    ],
)
def test_violation_names_the_transitions_that_the_table_allows(
    from_state: str, to_state: str, event: str | None, why: str
) -> None:
    assert violation("MRTask", from_state, to_state, event) == why


# -- the log of a real MapReduce application master -------------------------------------------------------------------


LOG = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "loghub" / "Hadoop_2k.log"
# `job_1_0001Job Transitioned from NEW to INITED`: Hadoop has no space there.
LINE = re.compile(
    r"\.(\w+): ((?:job|task|attempt)_[\d_mr]*\d) ?(?:Job|Task|TaskAttempt) Transitioned from (\w+) to (\w+)"
)


class Logged(NamedTuple):
    machine: str
    entity: str
    from_state: str
    to_state: str


@pytest.fixture(scope="module")
def transitions() -> list[Logged]:
    if not LOG.is_file():
        pytest.skip("no Hadoop log of loghub beside this checkout")
    found = LINE.findall(LOG.read_text(encoding="utf-8"))
    return [Logged(HADOOP_CLASSES[class_], *rest) for class_, *rest in found]


def test_each_transition_of_the_log_is_one_of_the_tables_but_for_that_of_an_older_hadoop(
    transitions: list[Logged],
) -> None:
    found = [(logged, violation(logged.machine, logged.from_state, logged.to_state)) for logged in transitions]

    # This master killed the container of an attempt that is done. Newer ones let it end by itself: they have
    # SUCCESS_FINISHING_CONTAINER between the two states.
    refused = [(logged[1:], why) for logged, why in found if why is not None]
    assert [what for what, _ in refused] == [
        ("attempt_1445144423722_0020_m_000003_0", "RUNNING", "SUCCESS_CONTAINER_CLEANUP")
    ]
    assert refused[0][1] is not None
    assert refused[0][1].startswith(
        "MRTaskAttempt: no event leads from RUNNING to SUCCESS_CONTAINER_CLEANUP, only to COMMIT_PENDING, "
    )


@pytest.mark.parametrize("release", ["2.4", "2.7", ANY])
def test_each_transition_of_the_log_is_one_of_an_older_release(release: str, transitions: list[Logged]) -> None:
    found = [violation(one.machine, one.from_state, one.to_state, release=release) for one in transitions]

    assert found == [None] * 67


def test_each_entity_of_the_log_goes_from_new_on_without_a_gap(transitions: list[Logged]) -> None:
    states: dict[str, str] = {}
    for machine, entity, from_state, to_state in transitions:
        assert states.get(entity, FACTORIES[machine].initial_state.name) == from_state, entity
        states[entity] = to_state

    assert Counter(logged.machine for logged in transitions) == {"MRJob": 3, "MRTask": 22, "MRTaskAttempt": 42}
