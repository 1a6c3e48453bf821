"""What log4j's layouts write before the message."""

from __future__ import annotations

import pytest

from pipeline.yarnlog.clock import LogClock, YarnLogError
from pipeline.yarnlog.headers import RecordHeader, read_header

from ...kit.tables import paired

SECOND = 1_000_000_000
# 2015-10-18 18:01:47 UTC
AT = 1_445_191_307 * SECOND
MS = 1_000_000

# Milliseconds, level, thread, logger and message.
HEADERS = """
# a container's syslog
2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: Created
    978 / INFO / main / org.apache.hadoop.mapreduce.v2.app.MRAppMaster / Created
# a daemon's log, as Hadoop comes
2015-10-18 18:01:47,978 WARN org.apache.hadoop.yarn.event.AsyncDispatcher: a: b
    978 / WARN / - / org.apache.hadoop.yarn.event.AsyncDispatcher / a: b
# the debugging layout, in which levels are as wide as the longest, and the same with the thread
2015-10-18 18:01:47,978 INFO  resourcemanager.ResourceManager (ResourceManager.java:<init>(123)) - up
    978 / INFO / - / resourcemanager.ResourceManager / up
2015-10-18 18:01:47,978 INFO  [Thread-1] rmapp.RMAppImpl (RMAppImpl.java:handle(1)) - up
    978 / INFO / Thread-1 / rmapp.RMAppImpl / up
# log4j 2 with the thread first
2015-10-18 18:01:47.978 [main] ERROR a.b.C - down
    978 / ERROR / main / a.b.C / down
# a small cluster for tests
2015-10-18 18:01:47 INFO  RMContainerImpl:422 - moved
    0 / INFO / - / RMContainerImpl / moved
# the console
15/10/18 18:01:47 WARN resourcemanager.RMAuditLogger: USER=ann
    0 / WARN / - / resourcemanager.RMAuditLogger / USER=ann
2015-10-18T20:01:47.978+0200 INFO a.B: north
    978 / INFO / - / a.B / north
2015-10-18 13:31:47 -04:30 INFO a.B: west
    0 / INFO / - / a.B / west
2015-10-18 18:01:47Z FATAL a.B: sea
    0 / FATAL / - / a.B / sea
# a thread with brackets in its name
2015-10-18 18:01:47,978 INFO [Task [a] of 2] a.B: x
    978 / INFO / Task [a] of 2 / a.B / x
2015-10-18 18:01:47,978 INFO a.B:
    978 / INFO / - / a.B / -
# no logger: the rest is the message
2015-10-18 18:01:47,978 INFO STARTUP_MSG host = a
    978 / INFO / - / - / STARTUP_MSG host = a
"""


@pytest.mark.parametrize("end", ["", " "], ids=["", "a blank at the end"])
@pytest.mark.parametrize(("line", "header"), paired(HEADERS))
def test_each_layout_of_hadoop_is_taken_apart(line: str, header: str, end: str) -> None:
    ms, level, thread, logger, message = (part if part != "-" else "" for part in header.split(" / "))

    assert read_header(line + end, LogClock()) == RecordHeader(
        AT + int(ms) * MS, level, thread or None, logger, message
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\tat org.apache.hadoop.yarn.state.StateMachineFactory.doTransition(StateMachineFactory.java:305)",
        "Caused by: java.io.IOException: 2015-10-18 18:01:47,978 INFO a.B: x",
        "2015-10-18 18:01:47,978 of no level",
        "2015-13-18 18:01:47,978 INFO a.B: there is no such month",
        "2015-10-18 24:01:47,978 INFO a.B: there is no such hour",
        "2015-10-18 18:01:47,978 INFORMATION a.B: no level either",
        "9999-10-18 18:01:47,978 INFO a.B: more nanoseconds than a long holds",
        "٢٠١٥-10-18 18:01:47,978 INFO a.B: other digits",
    ],
)
def test_what_begins_with_no_time_and_level_is_no_header(line: str) -> None:
    assert read_header(line, LogClock()) is None


@pytest.mark.parametrize(
    ("time", "at"),
    [("2015-10-18 20:01:47", AT), ("2015-12-18 19:01:47", AT + 61 * 86_400 * SECOND), ("2015-10-18 18:01:47Z", AT)],
    ids=["summer", "winter", "with a zone"],
)
def test_times_without_a_zone_are_of_the_zone_that_is_named(time: str, at: int) -> None:
    header = read_header(f"{time} INFO a.B: x", LogClock("Europe/Berlin"))

    assert header.at == at


@pytest.mark.parametrize("name", ["Europe/Atlantis", "", "../etc/passwd"])
def test_a_time_zone_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(YarnLogError, match="is not a time zone; use a name from the time zone database"):
        LogClock(name)
