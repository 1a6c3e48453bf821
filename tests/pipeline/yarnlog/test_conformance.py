"""Logged transitions against the tables of the machines."""

from __future__ import annotations

import pytest

from pipeline.yarnlog.summary import is_declared, mismatch, older_releases
from statemachines.conformance import UnknownReleaseError
from statemachines.registry import FACTORIES


@pytest.mark.parametrize(
    ("machine", "transition", "contradiction"),
    [
        ("RMApp", "ACCEPTED ATTEMPT_REGISTERED RUNNING", None),
        ("RMApp", "NEW START RUNNING", "RMApp: START does not lead from NEW to RUNNING, only to NEW_SAVING, SUBMITTED"),
        ("RMAppAttempt", "LAUNCHED REGISTERED RUNNING", None),
        (
            "RMAppAttempt",
            "NEW REGISTERED RUNNING",
            "RMAppAttempt: REGISTERED does not lead from NEW to RUNNING, only to FAILED, FINAL_SAVING",
        ),
        ("RMContainer", "ACQUIRED - RUNNING", None),
        (
            "RMContainer",
            "COMPLETED - RUNNING",
            "RMContainer: no event leads from COMPLETED to RUNNING, only to COMPLETED",
        ),
        ("RMNode", "RUNNING - LOST", None),
        ("RMNode", "LOST - RUNNING", "RMNode: no event leads from LOST to RUNNING, only to LOST"),
        ("MRJob", "SETUP - RUNNING", None),
        ("MRJob", "ERROR - RUNNING", "MRJob: no event leads from ERROR to RUNNING, only to ERROR"),
        ("MRTask", "SCHEDULED - RUNNING", None),
        ("MRTask", "FAILED - RUNNING", "MRTask: no event leads from FAILED to RUNNING, only to FAILED"),
        ("MRTaskAttempt", "ASSIGNED - RUNNING", None),
        ("MRTaskAttempt", "KILLED - RUNNING", "MRTaskAttempt: no event leads from KILLED to RUNNING, only to KILLED"),
        ("RMApp", "NEW START NEWER", "RMApp has no state NEWER"),
        ("NMApplication", "INITING - RUNNING", None),
        ("NMApplication", "FINISHED - NEW", "NMApplication: no event leads from FINISHED to NEW, only to FINISHED"),
        ("NMContainer", "NEW - WHEREVER", "NMContainer has no state WHEREVER"),
        ("LocalizedResource", "INIT - DOWNLOADING", None),
        (
            "LocalizedResource",
            "FAILED - INIT",
            "LocalizedResource: no event leads from FAILED to INIT, only to none",
        ),
        ("Task", "NEW - WHEREVER", None),
    ],
)
def test_a_transition_is_held_against_the_table_of_its_machine(
    machine: str, transition: str, contradiction: str | None
) -> None:
    from_state, event, to_state = transition.split()

    assert mismatch(machine, from_state, event.strip("-"), to_state, True) == contradiction


@pytest.mark.parametrize(
    ("machine", "state", "event", "contradiction"),
    [
        ("RMApp", "FINISHED", "START", None),
        ("RMApp", "NEW", "START", "RMApp: NEW takes START, which was rejected"),
        ("RMNode", "GONE", "STARTED", "RMNode has no state GONE"),
        ("NMContainer", "DONE", "RESOURCE_FAILED", "NMContainer: DONE takes RESOURCE_FAILED, which was rejected"),
        ("NMContainer", "DONE", "CONTAINER_LAUNCHED", None),
        ("NMContainer", "DONE", "CONTAINER_EXITED_WITH_SUCCESS", None),  # Hadoop 2.4 refuses it
        ("NMContainer", "LOCALIZED", "PAUSE_CONTAINER", None),  # a state of Hadoop 2
        ("Task", "DONE", "RESOURCE_FAILED", None),
    ],
)
def test_what_a_machine_refused_its_table_has_to_refuse(
    machine: str, state: str, event: str, contradiction: str | None
) -> None:
    assert mismatch(machine, state, event, state, False) == contradiction


def test_machines_of_the_registry_are_declared_and_others_are_not() -> None:
    assert [machine for machine in [*FACTORIES, "Task", "Container"] if is_declared(machine)] == list(FACTORIES)


@pytest.mark.parametrize(
    ("machine", "transition", "releases"),
    [
        ("MRTaskAttempt", "RUNNING - SUCCESS_CONTAINER_CLEANUP", ("2.0", "2.4", "2.7")),
        ("RMAppAttempt", "RUNNING UNREGISTERED FINISHED", ("2.0", "2.4", "2.7")),
        ("RMAppAttempt", "RUNNING - FINISHING", ("2.0",)),
        ("RMApp", "NEW APP_REJECTED FAILED", ("2.0", "2.4")),
        ("RMApp", "RUNNING MOVE RUNNING", ("2.4", "2.7")),
        ("NMContainer", "LOCALIZED - RUNNING", ("2.4", "2.7")),
        ("NMContainer", "NEW - SCHEDULED", ()),  # Hadoop 3 has it
        ("NMContainer", "NEW - RUNNING", ()),  # no release has it
        ("Task", "NEW - RUNNING", ()),
    ],
)
def test_a_transition_of_an_older_release_is_no_mismatch_and_names_the_releases(
    machine: str, transition: str, releases: tuple[str, ...]
) -> None:
    from_state, event, to_state = transition.split()

    assert older_releases(machine, from_state, event.strip("-"), to_state, True) == releases
    if releases:
        assert mismatch(machine, from_state, event.strip("-"), to_state, True) is None
    assert older_releases(machine, from_state, event.strip("-"), to_state, False) == ()


@pytest.mark.parametrize(
    ("release", "transition", "contradiction"),
    [
        ("2.4", "RUNNING - SUCCESS_CONTAINER_CLEANUP", None),
        ("2.7", "RUNNING - SUCCESS_CONTAINER_CLEANUP", None),
        (
            "3",
            "RUNNING - SUCCESS_CONTAINER_CLEANUP",
            "MRTaskAttempt: no event leads from RUNNING to SUCCESS_CONTAINER_CLEANUP, only to COMMIT_PENDING, ",
        ),
        ("3", "RUNNING - SUCCESS_FINISHING_CONTAINER", None),
        ("2.7", "RUNNING - SUCCESS_FINISHING_CONTAINER", "MRTaskAttempt of Hadoop 2.7 has no state SUCCESS_FINISHING_"),
    ],
)
def test_one_release_asked_for_is_checked_strictly(release: str, transition: str, contradiction: str | None) -> None:
    from_state, event, to_state = transition.split()

    why = mismatch("MRTaskAttempt", from_state, event.strip("-"), to_state, True, release)

    assert why is None if contradiction is None else why is not None and why.startswith(contradiction)


def test_a_refusal_is_checked_against_the_release_asked_for() -> None:
    refused = ("NMContainer", "DONE", "CONTAINER_EXITED_WITH_SUCCESS", "DONE", False)

    assert mismatch(*refused, "2.4") is None
    assert mismatch(*refused, "2.7") == (
        "NMContainer of Hadoop 2.7: DONE takes CONTAINER_EXITED_WITH_SUCCESS, which was rejected"
    )


def test_a_release_without_tables_is_refused() -> None:
    with pytest.raises(
        UnknownReleaseError, match=r"no tables of Hadoop '2\.5'; expected one of 2\.4, 2\.7, 3, or 'any'"
    ):
        mismatch("RMApp", "NEW", "START", "NEW_SAVING", True, "2.5")
