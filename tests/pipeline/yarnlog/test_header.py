"""What log4j's layouts write before the message."""

from __future__ import annotations

import pytest

from pipeline.yarnlog.clock import LogClock, YarnLogError
from pipeline.yarnlog.headers import RecordHeader, read_header

SECOND = 1_000_000_000
# 2015-10-18 18:01:47 UTC
AT = 1_445_191_307 * SECOND
MS = 1_000_000


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (  # a container's syslog
            "2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: Created",
            RecordHeader(AT + 978 * MS, "INFO", "main", "org.apache.hadoop.mapreduce.v2.app.MRAppMaster", "Created"),
        ),
        (  # a daemon's log, as Hadoop comes
            "2015-10-18 18:01:47,978 WARN org.apache.hadoop.yarn.event.AsyncDispatcher: a: b",
            RecordHeader(AT + 978 * MS, "WARN", None, "org.apache.hadoop.yarn.event.AsyncDispatcher", "a: b"),
        ),
        (  # the debugging layout, in which levels are as wide as the longest
            "2015-10-18 18:01:47,978 INFO  resourcemanager.ResourceManager (ResourceManager.java:<init>(123)) - up",
            RecordHeader(AT + 978 * MS, "INFO", None, "resourcemanager.ResourceManager", "up"),
        ),
        (  # the same with the thread
            "2015-10-18 18:01:47,978 INFO  [Thread-1] rmapp.RMAppImpl (RMAppImpl.java:handle(1)) - up",
            RecordHeader(AT + 978 * MS, "INFO", "Thread-1", "rmapp.RMAppImpl", "up"),
        ),
        (  # log4j 2 with the thread first
            "2015-10-18 18:01:47.978 [main] ERROR a.b.C - down",
            RecordHeader(AT + 978 * MS, "ERROR", "main", "a.b.C", "down"),
        ),
        (  # a small cluster for tests
            "2015-10-18 18:01:47 INFO  RMContainerImpl:422 - moved",
            RecordHeader(AT, "INFO", None, "RMContainerImpl", "moved"),
        ),
        (  # the console
            "15/10/18 18:01:47 WARN resourcemanager.RMAuditLogger: USER=ann",
            RecordHeader(AT, "WARN", None, "resourcemanager.RMAuditLogger", "USER=ann"),
        ),
        (
            "2015-10-18T20:01:47.978+0200 INFO a.B: north",
            RecordHeader(AT + 978 * MS, "INFO", None, "a.B", "north"),
        ),
        ("2015-10-18 13:31:47 -04:30 INFO a.B: west", RecordHeader(AT, "INFO", None, "a.B", "west")),
        ("2015-10-18 18:01:47Z FATAL a.B: sea", RecordHeader(AT, "FATAL", None, "a.B", "sea")),
        (  # a thread with brackets in its name
            "2015-10-18 18:01:47,978 INFO [Task [a] of 2] a.B: x",
            RecordHeader(AT + 978 * MS, "INFO", "Task [a] of 2", "a.B", "x"),
        ),
        ("2015-10-18 18:01:47,978 INFO a.B: ", RecordHeader(AT + 978 * MS, "INFO", None, "a.B", "")),
        ("2015-10-18 18:01:47,978 INFO a.B:", RecordHeader(AT + 978 * MS, "INFO", None, "a.B", "")),
        (  # no logger: the rest is the message
            "2015-10-18 18:01:47,978 INFO STARTUP_MSG host = a",
            RecordHeader(AT + 978 * MS, "INFO", None, "", "STARTUP_MSG host = a"),
        ),
    ],
)
def test_each_layout_of_hadoop_is_taken_apart(line: str, header: RecordHeader) -> None:
    assert read_header(line, LogClock()) == header


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


def test_times_without_a_zone_are_of_the_zone_that_is_named() -> None:
    clock = LogClock("Europe/Berlin")

    summer = read_header("2015-10-18 20:01:47 INFO a.B: x", clock)
    winter = read_header("2015-12-18 19:01:47 INFO a.B: x", clock)
    with_zone = read_header("2015-10-18 18:01:47Z INFO a.B: x", clock)

    assert summer is not None
    assert winter is not None
    assert with_zone is not None
    assert (summer.at, winter.at, with_zone.at) == (AT, AT + 61 * 86_400 * SECOND, AT)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "", "../etc/passwd"])
def test_a_time_zone_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(YarnLogError, match="is not a time zone; use a name from the time zone database"):
        LogClock(name)
