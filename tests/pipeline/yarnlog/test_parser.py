"""Lines in, records and unparsed lines out: which line is in which."""

from __future__ import annotations

from typing import Any

import pytest

from ...kit.tables import paired
from .written import parsed, records

RM = "org.apache.hadoop.yarn.server.resourcemanager"
AT = "2021-11-23 10:06:36,708"
AT_NS = 1_637_661_996_708_000_000
MOVE = f"{AT} INFO {RM}.rmapp.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event = START"
OTHER = f"{AT} INFO {RM}.ClientRMService: Allocated new applicationId: 1"
FRAME = "\tat org.apache.hadoop.yarn.state.StateMachineFactory.doTransition(StateMachineFactory.java:305)"
INVALID = "org.apache.hadoop.yarn.state.InvalidStateTransitionException: Invalid event: "


def parse(*lines: str) -> list[Any]:
    return parsed(f"{line}\n".encode() for line in lines)


def only_record(*lines: str) -> Any:
    [record] = parse(*lines)
    assert record.line_count == len(lines)
    return record


def test_a_record_has_its_line_its_time_and_its_text() -> None:
    found = parse(OTHER, MOVE)

    other, record = found
    assert other == (1, OTHER)
    assert (record.line, record.line_count, record.at, record.level) == (2, 1, AT_NS, "INFO")
    assert (record.thread, record.logger, record.text) == (None, f"{RM}.rmapp.RMAppImpl", MOVE)
    assert (record.message.kind, record.message.entity) == ("transition", "application_1_0001")


def test_the_lines_after_a_record_are_its_own_and_count_as_parsed() -> None:
    found = parse(MOVE, "", FRAME, OTHER)

    assert (found[0].line, found[0].line_count, found[0].text) == (1, 3, f"{MOVE}\n\n{FRAME}")
    assert found[1:] == [(4, OTHER)]


def test_lines_after_a_message_of_no_kind_and_before_the_first_record_are_unparsed_one_by_one() -> None:
    assert parse(OTHER, FRAME, "") == [(1, OTHER), (2, FRAME), (3, "")]
    assert parse("STARTUP_MSG", "", MOVE)[:2] == [(1, "STARTUP_MSG"), (2, "")]


def test_bytes_that_are_no_utf_8_are_kept_or_replaced() -> None:
    line = OTHER.encode() + b"\xff\xe4"

    [kept] = parsed([line])
    [shown] = parsed([line], errors="replace")

    assert kept.text.encode(errors="surrogateescape") == line
    assert shown.text == OTHER + "\ufffd\ufffd"


def test_what_goes_on_without_end_is_no_longer_kept() -> None:
    found = parse(MOVE, *["x"] * 5000)

    assert found[0].line_count == 5000
    assert found[1:] == [(5001, "x")]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "line",
    [
        MOVE + " " * 1_000_000 + "[" * 1_000_000 + "] " * 1_000_000,
        f"{AT} INFO RMNodeImpl: handle this event at current state" + "container: [" * 100_000,
        f"{AT} INFO LocalizedResource: Resource " + "(->" * 300_000 + " transitioned from A to b",
        f"{AT} INFO RMAuditLogger: " + "USER= " * 100_000 + " " * 1_000_000,
        f"{AT} " + "[a] INFO " * 100_000,
    ],
    ids=["brackets", "refusal", "resource", "audit", "threads"],
)
def test_a_long_line_is_read_whole_in_a_time_that_its_length_explains(line: str) -> None:
    [found] = parse(line)

    assert found.text == line


STALE = "this event at current state"
# Which machine and entity, in which state, refuse which event.
REFUSALS = f"""
RMAppImpl: App: application_1_0001 can't handle {STALE} / JOB_KILL at FINISHED
    RMApp application_1_0001 FINISHED JOB_KILL
RMAppAttemptImpl: App attempt: appattempt_1_0001_000001 can't handle {STALE} / JOB_KILL at FINISHED
    RMAppAttempt appattempt_1_0001_000001 FINISHED JOB_KILL
TaskImpl: Can't handle {STALE} for task_1_0001_m_000000 / JOB_KILL at FINISHED
    MRTask task_1_0001_m_000000 FINISHED JOB_KILL
TaskAttemptImpl: Can't handle {STALE} for attempt_1_0001_m_000000_0 / JOB_KILL at FINISHED
    MRTaskAttempt attempt_1_0001_m_000000_0 FINISHED JOB_KILL
JobImpl: Can't handle {STALE} / JOB_KILL at FINISHED
    MRJob None FINISHED JOB_KILL
RMAppImpl: Can't handle {STALE} / JOB_KILL at FINISHED
    RMApp None FINISHED JOB_KILL
# a node manager tells it in the first line
container.ContainerImpl: Can't handle {STALE}: Current: [DONE], eventType: [JOB_KILL], container: [container_1_1_01_2]
    NMContainer container_1_1_01_2 DONE JOB_KILL
# the line after the stack trace names the entity
RMNodeImpl: Can't handle {STALE} / STARTED at RUNNING / Invalid event STARTED on Node  host:8041
    RMNode host:8041 RUNNING STARTED
RMNodeImpl: Can't handle {STALE} / STARTED at RUNNING / Invalid event STARTED on Node  host:8041 oldState RUNNING
    RMNode host:8041 RUNNING STARTED
RMContainerImpl: Can't handle {STALE} / STARTED at RUNNING / Invalid event STARTED on container container_1_1_01_2
    RMContainer container_1_1_01_2 RUNNING STARTED
"""


@pytest.mark.parametrize(("told", "refused"), paired(REFUSALS))
def test_a_refused_event_is_read_from_the_lines_that_tell_of_it(told: str, refused: str) -> None:
    first, *more = told.split(" / ")
    trace = [INVALID + error for error in more[:1]]
    last = [f"{AT} ERROR {first.partition(':')[0]}: {line}" for line in more[1:]]

    message = only_record(f"{AT} ERROR {first}", *trace, *([FRAME] if trace else []), *last).message

    machine, entity, state, event = refused.split()
    assert (message.kind, message.machine, str(message.entity)) == ("invalid_transition", machine, entity)
    assert (message.from_state, message.event_type, message.to_state) == (state, event, state)
    assert not trace or message.error == trace[0]


def test_a_line_on_another_event_is_a_record_of_its_own() -> None:
    found = parse(
        f"{AT} ERROR RMNodeImpl: Can't handle this event at current state",
        INVALID + "STARTED at RUNNING",
        f"{AT} ERROR RMNodeImpl: Invalid event REBOOTING on Node  host:8041",
    )

    assert [(record.message.kind, record.message.entity) for record in records(found)] == [
        ("invalid_transition", None),
        ("invalid_event", "host:8041"),
    ]


def test_a_refusal_without_its_stack_trace_is_no_transition() -> None:
    message = only_record(f"{AT} ERROR RMNodeImpl: Can't handle this event at current state").message

    assert (message.kind, message.machine, message.event_type) == ("invalid_event", "RMNode", "")


def test_an_audit_line_goes_on_in_the_next_lines() -> None:
    message = only_record(
        f"{AT} WARN {RM}.RMAuditLogger: USER=ann\tOPERATION=Application Finished - Failed\tTARGET=RMAppManager\t"
        "RESULT=FAILURE\tDESCRIPTION=App failed with state: FAILED\tPERMISSIONS=Application failed 2 times due to",
        "java.io.IOException: disk",
        "\tat a.B.c(B.java:1)\tAPPID=application_1_0001",
    ).message

    assert (message.entity, message.error) == ("application_1_0001", "App failed with state: FAILED")
    assert message.fields["PERMISSIONS"] == (
        "Application failed 2 times due to\njava.io.IOException: disk\n\tat a.B.c(B.java:1)"
    )
