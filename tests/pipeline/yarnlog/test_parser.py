"""Lines in, records and unparsed lines out: which line is in which."""

from __future__ import annotations

import pytest

from pipeline.yarnlog.parser import LINES_KEPT, Record, Unparsed, parse_lines

RM = "org.apache.hadoop.yarn.server.resourcemanager"
AT = "2021-11-23 10:06:36,708"
AT_NS = 1_637_661_996_708_000_000
MOVE = f"{AT} INFO {RM}.rmapp.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event = START"
OTHER = f"{AT} INFO {RM}.ClientRMService: Allocated new applicationId: 1"
FRAME = "\tat org.apache.hadoop.yarn.state.StateMachineFactory.doTransition(StateMachineFactory.java:305)"
INVALID = "org.apache.hadoop.yarn.state.InvalidStateTransitionException: Invalid event: "


def parse(*lines: str) -> list[Record | Unparsed]:
    return list(parse_lines(f"{line}\n".encode() for line in lines))


def only_record(*lines: str) -> Record:
    [record] = parse(*lines)
    assert isinstance(record, Record)
    assert record.line_count == len(lines)
    return record


def test_a_record_has_its_line_its_time_and_its_text() -> None:
    found = parse(OTHER, MOVE)

    assert found[0] == Unparsed(1, OTHER)
    record = found[1]
    assert isinstance(record, Record)
    assert (record.line, record.line_count, record.at, record.level) == (2, 1, AT_NS, "INFO")
    assert (record.thread, record.logger, record.text) == (None, f"{RM}.rmapp.RMAppImpl", MOVE)
    assert (record.message.kind, record.message.entity) == ("transition", "application_1_0001")


def test_the_lines_after_a_record_are_its_own_and_count_as_parsed() -> None:
    found = parse(MOVE, "", FRAME, OTHER)

    assert isinstance(found[0], Record)
    assert (found[0].line, found[0].line_count, found[0].text) == (1, 3, f"{MOVE}\n\n{FRAME}")
    assert found[1:] == [Unparsed(4, OTHER)]


def test_the_lines_after_a_message_of_no_kind_are_unparsed_one_by_one() -> None:
    assert parse(OTHER, FRAME, "") == [Unparsed(1, OTHER), Unparsed(2, FRAME), Unparsed(3, "")]


def test_lines_before_the_first_record_are_unparsed() -> None:
    found = parse("STARTUP_MSG", "", MOVE)

    assert found[:2] == [Unparsed(1, "STARTUP_MSG"), Unparsed(2, "")]
    assert isinstance(found[2], Record)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_the_end_of_a_line_is_no_part_of_it(end: bytes) -> None:
    [found] = parse_lines([OTHER.encode() + end])

    assert found == Unparsed(1, OTHER)


def test_bytes_that_are_no_utf_8_are_kept_or_replaced() -> None:
    line = OTHER.encode() + b"\xff\xe4"

    [kept] = parse_lines([line])
    [shown] = parse_lines([line], errors="replace")

    assert kept.text.encode(errors="surrogateescape") == line
    assert shown.text == OTHER + "\ufffd\ufffd"


def test_what_goes_on_without_end_is_no_longer_kept() -> None:
    found = parse(MOVE, *["x"] * LINES_KEPT)

    assert isinstance(found[0], Record)
    assert found[0].line_count == LINES_KEPT
    assert found[1:] == [Unparsed(LINES_KEPT + 1, "x")]


@pytest.mark.timeout(30)
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


@pytest.mark.parametrize(
    ("first_line", "logger", "machine", "entity"),
    [
        (
            "App: application_1_0001 can't handle this event at current state",
            "RMAppImpl",
            "RMApp",
            "application_1_0001",
        ),
        (
            "App attempt: appattempt_1_0001_000001 can't handle this event at current state",
            "RMAppAttemptImpl",
            "RMAppAttempt",
            "appattempt_1_0001_000001",
        ),
        (
            "Can't handle this event at current state for task_1_0001_m_000000",
            "TaskImpl",
            "MRTask",
            "task_1_0001_m_000000",
        ),
        (
            "Can't handle this event at current state for attempt_1_0001_m_000000_0",
            "TaskAttemptImpl",
            "MRTaskAttempt",
            "attempt_1_0001_m_000000_0",
        ),
        ("Can't handle this event at current state", "JobImpl", "MRJob", None),
        ("Can't handle this event at current state", "RMAppImpl", "RMApp", None),
    ],
)
def test_a_refused_event_is_read_from_the_stack_trace(
    first_line: str, logger: str, machine: str, entity: str | None
) -> None:
    error = INVALID + "JOB_KILL at FINISHED"

    message = only_record(f"{AT} ERROR {logger}: {first_line}", error, FRAME).message

    assert (message.kind, message.machine, message.entity) == ("invalid_transition", machine, entity)
    assert (message.from_state, message.event_type, message.to_state) == ("FINISHED", "JOB_KILL", "FINISHED")
    assert message.error == error


def test_a_node_manager_tells_the_refused_event_in_the_first_line() -> None:
    line = (
        f"{AT} WARN container.ContainerImpl: Can't handle this event at current state: Current: [DONE], eventType: "
        "[RESOURCE_FAILED], container: [container_1_0001_01_000002]"
    )

    message = only_record(line).message

    assert (message.kind, message.machine, message.entity) == (
        "invalid_transition",
        "NMContainer",
        "container_1_0001_01_000002",
    )
    assert (message.from_state, message.event_type, message.to_state) == ("DONE", "RESOURCE_FAILED", "DONE")


@pytest.mark.parametrize(
    ("logger", "last_line", "entity"),
    [
        ("RMNodeImpl", "Invalid event STARTED on Node  host:8041", "host:8041"),
        ("RMNodeImpl", "Invalid event STARTED on Node  host:8041 oldState RUNNING", "host:8041"),
        (
            "RMContainerImpl",
            "Invalid event STARTED on container container_1_0001_01_000002",
            "container_1_0001_01_000002",
        ),
    ],
)
def test_the_line_after_the_stack_trace_names_the_entity(logger: str, last_line: str, entity: str) -> None:
    record = only_record(
        f"{AT} ERROR {logger}: Can't handle this event at current state",
        INVALID + "STARTED at RUNNING",
        FRAME,
        f"{AT} ERROR {logger}: {last_line}",
    )

    assert (record.message.entity, record.message.from_state) == (entity, "RUNNING")


def test_a_line_on_another_event_is_a_record_of_its_own() -> None:
    found = parse(
        f"{AT} ERROR RMNodeImpl: Can't handle this event at current state",
        INVALID + "STARTED at RUNNING",
        f"{AT} ERROR RMNodeImpl: Invalid event REBOOTING on Node  host:8041",
    )

    assert [(record.message.kind, record.message.entity) for record in found if isinstance(record, Record)] == [
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
    assert message.fields is not None
    assert message.fields["PERMISSIONS"] == (
        "Application failed 2 times due to\njava.io.IOException: disk\n\tat a.B.c(B.java:1)"
    )
