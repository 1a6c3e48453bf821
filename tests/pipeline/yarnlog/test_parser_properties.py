"""Whatever a file holds: nothing raises, and each line is in one record or one unparsed line."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from pipeline.yarnlog.rows import row_of

from .written import parsed, records

# Pieces of real lines, in any order and broken off anywhere, lead further in than random text does.
PIECES = [
    "2015-10-18 18:01:47,978 ",
    "15/10/18 18:01:47 ",
    "2015-99-99T99:99:99.1+0200 ",
    "INFO ",
    "ERROR  ",
    "[main] ",
    "[a] [b] ",
    "org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppImpl: ",
    "impl.JobImpl (JobImpl.java:handle(12)) - ",
    "RMNodeImpl:12 - ",
    "a.RMAuditLogger: ",
    "a.$: ",
    "application_1_0001 ",
    "job_1_0001",
    "container_1_0001_99999999999_01 ",
    "State change from ",
    "Job Transitioned from ",
    "Container Transitioned from ",
    "Resource (->) size : transitioned from ",
    "NEW to ALLOCATED",
    "RUNNING to ",
    " on event = START",
    "can't handle this event at current state",
    ": Current: [A], eventType: [B]",
    "container: []",
    "Invalid event: A at B",
    "Invalid event A on Node  host:1",
    "Registering class a for class b",
    "Size of event-queue is 12",
    "Very low remaining capacity on event queue: -1",
    "Event type: A, Event record counter: 1",
    "USER=\t",
    "OPERATION=a",
    "\tRESULT=FAILURE",
    "\tAPPID",
    "\t=",
    "\tat a.b(C.java:1)",
    "\r",
    "\n",
    "\n",
]
LINES = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map(
    lambda pieces: "".join(pieces).encode()
)


@given(st.binary() | LINES)
def test_the_lines_of_a_file_add_up_and_are_all_kept(content: bytes) -> None:
    lines = content.split(b"\n")

    found = parsed(line + b"\n" for line in lines)

    counts = [getattr(one, "line_count", 1) for one in found]
    assert sum(counts) == len(lines)
    texts = [one.text.encode(errors="surrogateescape").split(b"\n") for one in found]
    assert [len(text) for text in texts] == counts
    # Records of sources that alternate are in another order.
    assert sorted(line for text in texts for line in text) == sorted(line.removesuffix(b"\r") for line in lines)


@given(LINES)
def test_each_record_is_a_row(content: bytes) -> None:
    for one in records(parsed(content.split(b"\n"), errors="replace")):
        row = row_of(one, "a.log", "a.log", 7)
        assert row.seq == 7 * 2**40 + one.line
        assert row.payload is None or isinstance(json.loads(row.payload), dict)
        assert (row.machine != "") == (row.kind in ("transition", "invalid_transition", "invalid_event"))
        assert -(2**63) <= row.at < 2**63
        ",".join(field for field in row if isinstance(field, str)).encode()
