"""The tables of Hadoop's releases."""

from __future__ import annotations

import pytest

from statemachines.conformance import UnknownReleaseError, arcs_of, releases_with, violation, wrong_refusal
from statemachines.registry import FACTORIES
from statemachines.releases.differences import ANY, CURRENT, EARLY, RELEASES, ReleaseArc, differences

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


def current(machine: str) -> set[ReleaseArc]:
    return {
        ReleaseArc(row.from_state.name, row.event.name, state.name)
        for row in FACTORIES[machine].transitions()
        for state in row.to_states
    }


@pytest.mark.parametrize("machine", FACTORIES)
def test_each_listed_arc_is_hadoop_3s_exactly_if_it_names_3(machine: str) -> None:
    listed = differences()[machine]

    assert {arc for arc, releases in listed.items() if CURRENT in releases} == listed.keys() & current(machine)


def test_each_listed_arc_is_of_a_machine_and_names_its_releases_in_order_and_not_all() -> None:
    known = (EARLY, *RELEASES)

    assert differences().keys() == FACTORIES.keys()
    for listed in differences().values():
        for arc, releases in listed.items():
            assert releases == tuple(release for release in known if release in releases) != (), arc
            assert not set(RELEASES) <= set(releases), f"{arc}: on this arc the releases agree"


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
    for arc in {*differences()[machine], *current(machine)}:
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
