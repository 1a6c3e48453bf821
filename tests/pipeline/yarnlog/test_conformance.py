"""Logged transitions against the tables of the machines."""

from __future__ import annotations

import pytest

from dispatcher import DispatcherError
from pipeline.yarnlog.summary import mismatch, older_releases

from ...kit.tables import paired

# What the table says against the transition; `-` in place of an event stands for any, `fine` for no contradiction.
MOVES = """
RMApp ACCEPTED ATTEMPT_REGISTERED RUNNING
    fine
RMApp NEW START RUNNING
    RMApp: START does not lead from NEW to RUNNING, only to NEW_SAVING, SUBMITTED
RMAppAttempt NEW REGISTERED RUNNING
    RMAppAttempt: REGISTERED does not lead from NEW to RUNNING, only to FAILED, FINAL_SAVING
RMContainer ACQUIRED - RUNNING
    fine
RMContainer COMPLETED - RUNNING
    RMContainer: no event leads from COMPLETED to RUNNING, only to COMPLETED
RMNode LOST - RUNNING
    RMNode: no event leads from LOST to RUNNING, only to LOST
MRJob ERROR - RUNNING
    MRJob: no event leads from ERROR to RUNNING, only to ERROR
MRTask FAILED - RUNNING
    MRTask: no event leads from FAILED to RUNNING, only to FAILED
MRTaskAttempt KILLED - RUNNING
    MRTaskAttempt: no event leads from KILLED to RUNNING, only to KILLED
RMApp NEW START NEWER
    RMApp has no state NEWER
NMApplication INITING - RUNNING
    fine
NMApplication FINISHED - NEW
    NMApplication: no event leads from FINISHED to NEW, only to FINISHED
NMContainer NEW - WHEREVER
    NMContainer has no state WHEREVER
LocalizedResource FAILED - INIT
    LocalizedResource: no event leads from FAILED to INIT, only to none
Task NEW - WHEREVER
    fine
"""
REFUSALS = """
RMApp FINISHED START
    fine
RMApp NEW START
    RMApp: NEW takes START, which was rejected
RMNode GONE STARTED
    RMNode has no state GONE
NMContainer DONE RESOURCE_FAILED
    NMContainer: DONE takes RESOURCE_FAILED, which was rejected
NMContainer DONE CONTAINER_LAUNCHED
    fine
# Hadoop 2.4 refuses it
NMContainer DONE CONTAINER_EXITED_WITH_SUCCESS
    fine
# a state of Hadoop 2
NMContainer LOCALIZED PAUSE_CONTAINER
    fine
Task DONE RESOURCE_FAILED
    fine
"""
OF_RELEASES = """
2.4 MRTaskAttempt RUNNING - SUCCESS_CONTAINER_CLEANUP
    fine
2.7 MRTaskAttempt RUNNING - SUCCESS_CONTAINER_CLEANUP
    fine
3 MRTaskAttempt RUNNING - SUCCESS_CONTAINER_CLEANUP
    MRTaskAttempt: no event leads from RUNNING to SUCCESS_CONTAINER_CLEANUP, only to COMMIT_PENDING, ...
3 MRTaskAttempt RUNNING - SUCCESS_FINISHING_CONTAINER
    fine
2.7 MRTaskAttempt RUNNING - SUCCESS_FINISHING_CONTAINER
    MRTaskAttempt of Hadoop 2.7 has no state SUCCESS_FINISHING_...
2.4 NMContainer DONE CONTAINER_EXITED_WITH_SUCCESS
    fine
2.7 NMContainer DONE CONTAINER_EXITED_WITH_SUCCESS
    NMContainer of Hadoop 2.7: DONE takes CONTAINER_EXITED_WITH_SUCCESS, which was rejected
"""
OLDER = """
MRTaskAttempt RUNNING - SUCCESS_CONTAINER_CLEANUP
    2.0 2.4 2.7
RMAppAttempt RUNNING UNREGISTERED FINISHED
    2.0 2.4 2.7
RMAppAttempt RUNNING - FINISHING
    2.0
RMApp NEW APP_REJECTED FAILED
    2.0 2.4
RMApp RUNNING MOVE RUNNING
    2.4 2.7
NMContainer LOCALIZED - RUNNING
    2.4 2.7
# Hadoop 3 has it
NMContainer NEW - SCHEDULED
    none
# no release has it
NMContainer NEW - RUNNING
    none
Task NEW - RUNNING
    none
"""


@pytest.mark.parametrize(
    ("logged", "why"), [("any " + logged, why) for logged, why in paired(MOVES + REFUSALS)] + paired(OF_RELEASES)
)
def test_what_is_logged_is_held_against_the_table_of_its_machine(logged: str, why: str) -> None:
    """A transition, or an event that the machine refused, which its table has to refuse as well."""
    release, machine, from_state, event, *to_state = logged.split()

    found = (
        mismatch(machine, from_state, event.strip("-"), *(to_state or [from_state]), bool(to_state), release) or "fine"
    )

    assert found.startswith(why[:-3]) if why.endswith("...") else found == why


@pytest.mark.parametrize(("logged", "releases"), paired(OLDER))
def test_a_transition_of_an_older_release_is_no_mismatch_and_names_the_releases(logged: str, releases: str) -> None:
    machine, from_state, event, to_state = logged.split()
    move = machine, from_state, event.strip("-"), to_state

    assert " ".join(older_releases(*move, True)) == releases.replace("none", "")
    if releases != "none":
        assert mismatch(*move, True) is None
    assert older_releases(*move, False) == ()


def test_a_release_without_tables_is_refused() -> None:
    with pytest.raises(DispatcherError, match=r"no tables of Hadoop '2\.5'; expected one of 2\.4, 2\.7, 3, or 'any'"):
        mismatch("RMApp", "NEW", "START", "NEW_SAVING", True, "2.5")
