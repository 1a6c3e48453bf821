"""Logs in every layout, and with every prefix that another tool writes before the lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import written
from .written import (
    AT,
    AT_NS,
    BRACKETS,
    LAYOUTS,
    LOGGER,
    PREFIXES,
    SECOND_NS,
    THREAD,
    UNTIMED,
    Layout,
    Prefix,
    parsed,
    prefixed,
)

pytestmark = pytest.mark.long

MOVE = "application_1_0001 State change from NEW to NEW_SAVING on event = START"
PLAIN = LAYOUTS["Hadoop"]
REFUSAL = [
    f"{AT} ERROR {LOGGER}: App: application_1_0001 can't handle this event at current state",
    "a.InvalidStateTransitionException: Invalid event: START at FINISHED",
    "\tat a.b(C.java:1)",
]
OTHER = f"{AT} INFO {LOGGER}: something else"
MESSAGES = [
    MOVE,
    "Registering class a.RMAppEventType for class a.Dispatcher",
    "Size of event-queue is 1000",
    "Very low remaining capacity on Schedulerevent queue: 7",
    "Invalid event START on Application application_1_0001",
    "App: application_1_0001 can't handle this event at current state",
    "container_1_0001_01_000001 Container Transitioned from NEW to ALLOCATED",
]


def parse(lines: Iterable[bytes]) -> tuple[list[Any], Any]:
    """The records and lines found, and the log format; None if none was recognized."""
    formats: list[Any] = []
    found = parsed(lines, on_format=formats.append)
    assert len(formats) <= 1
    return found, formats[0] if formats else None


def records(lines: Iterable[bytes]) -> list[Any]:
    """The records without their texts, which have the prefixes, and lines, of which a prefix may make several."""
    return [record._replace(text="", line=0, line_count=1) for record in written.records(parse(lines)[0])]


def line_counts(found: Iterable[Any]) -> list[int]:
    """The numbers of lines of records; a line outside counts 1."""
    return [getattr(one, "line_count", 1) for one in found]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_each_layout_is_parsed(layout: Layout) -> None:
    text = layout(MOVE)

    [record], _ = parse(prefixed(str, text))

    assert (record.text, record.line_count) == (text, text.count("\n") + 1)
    assert (record.message.machine, record.message.entity) == ("RMApp", "application_1_0001")
    assert (record.message.from_state, record.message.event_type, record.message.to_state) == (
        "NEW",
        "START",
        "NEW_SAVING",
    )
    assert [record.logger] == re.findall(rf"{LOGGER}|rmapp.RMAppImpl|RMAppImpl", text)[:1]
    assert [record.level] == re.findall("INFO|WARN|ERROR|FATAL", text)
    assert [record.thread or ""] == ([name for name in (THREAD, "main", BRACKETS) if name in text] or [""])
    assert record.at == (AT_NS if "708" in text else SECOND_NS)


@pytest.mark.parametrize(
    ("line", "is_header"),
    [
        ("2021-11-23 10:06:37,978 INFO STARTUP_MSG host = a", True),  # without a logger
        ("2021-11-23 10:06:37,978 INFO a.B:", True),
        ("", False),
        ("Caused by: java.io.IOException: 2021-11-23 10:06:37,978 INFO a.B: x", False),
        ("2021-11-23 10:06:37,978 of no level", False),
        ("2021-13-23 10:06:37,978 INFO a.B: there is no such month", False),
        ("2021-11-23 24:06:37,978 INFO a.B: there is no such hour", False),
        ("2021-11-23 10:06:37,978 INFORMATION a.B: no level either", False),
        ("9999-11-23 10:06:37,978 INFO a.B: more nanoseconds than a long holds", False),
        ("٢٠٢١-11-23 10:06:37,978 INFO a.B: other digits", False),
    ],
)
def test_a_line_belongs_to_the_record_before_unless_it_begins_with_a_time_and_a_level(
    line: str, is_header: bool
) -> None:
    found, _ = parse(prefixed(str, f"{PLAIN(MOVE)}\n{line}"))

    assert line_counts(found) == ([1, 1] if is_header else [2])


@pytest.mark.parametrize("layout", UNTIMED.values(), ids=UNTIMED)
def test_a_layout_without_a_time_is_parsed_with_the_time_of_the_prefix(layout: Layout) -> None:
    [bare], _ = parse(prefixed(str, layout(MOVE)))
    [in_container], _ = parse(prefixed(PREFIXES["docker logs -t"][0], layout(MOVE)))
    [in_syslog] = parsed(prefixed(PREFIXES["syslog, RFC 5424"][0], layout(MOVE)))

    found = bare, in_container, in_syslog
    assert [(one.message.machine, one.at) for one in found] == [("RMApp", at) for at in (0, AT_NS, AT_NS)]


def test_a_prefix_without_a_year_is_of_the_last_year_before_the_file_was_changed() -> None:
    lines = prefixed(PREFIXES["journald"][0], UNTIMED["LEVEL"](MOVE))

    ats = [[one.at for one in parsed(lines, latest=latest)] for latest in (date(2021, 11, 23), date(2022, 11, 22))]

    assert ats == [[SECOND_NS], [SECOND_NS]]


@pytest.mark.parametrize(("prefix", "names"), PREFIXES.values(), ids=PREFIXES)
def test_each_prefix_is_found_in_each_layout(prefix: Prefix, names: tuple[str, ...]) -> None:
    for layout in (LAYOUTS | UNTIMED).values():
        lines = prefixed(prefix, layout(MOVE))

        [record], found = parse(lines)

        assert record.message.event_type == "START"
        assert (record.line, record.line_count) == (1, len(lines))
        assert record.text.encode() == b"".join(lines).removesuffix(b"\n")
        # Blanks are no prefix to a layout that begins with them; with a time before them, other layouts are Hadoop's.
        assert found.prefixes in (names, tuple(name for name in names if name not in ("blanks", "docker logs -t")))


@given(
    st.lists(st.sampled_from([*map(PLAIN, MESSAGES), OTHER, "\n".join(REFUSAL)]), min_size=1, max_size=30).filter(
        lambda texts: set(texts) != {OTHER}
    ),
    st.sampled_from(sorted(PREFIXES)),
)
def test_a_prefix_before_every_line_changes_no_record(texts: list[str], name: str) -> None:
    plain = records(prefixed(str, "\n".join(texts)))

    assert records(prefixed(PREFIXES[name][0], "\n".join(texts))) == plain


@given(st.lists(st.sampled_from(MESSAGES), min_size=1), st.text(alphabet=" \t\x0b\x0c\xa0", max_size=5))
def test_blanks_at_the_end_change_no_record(messages: list[str], blanks: str) -> None:
    text = "\n".join(map(PLAIN, messages))

    assert records(prefixed(lambda line: line + blanks, text)) == records(prefixed(str, text))


def test_containers_that_alternate_have_records_of_their_own() -> None:
    moved = f"{AT} INFO a.ContainerImpl: Container container_1_0001_01_000001 transitioned from NEW to LOCALIZING"
    lines = [
        f"rm-1  | {REFUSAL[0]}",
        f"nm-1  | {moved}",
        f"rm-1  | {REFUSAL[1]}",
        f"nm-1  | {OTHER}",
        f"rm-1  | {REFUSAL[2]}",
    ]

    found, _ = parse(prefixed(str, "\n".join(lines)))

    assert list(zip((one.line for one in found), line_counts(found), strict=True)) == [(2, 1), (4, 1), (1, 3)]
    refused = found[-1]
    assert (refused.message.kind, refused.message.from_state) == ("invalid_transition", "FINISHED")


def test_pieces_of_two_streams_are_put_together_apart() -> None:
    first, second = PLAIN(MOVE), PLAIN(MESSAGES[-1])
    time = "2021-11-23T10:06:36.708123456Z"
    lines = [
        f"{time} stdout P {first[:50]}",
        f"{time} stderr P {second[:70]}",
        f"{time} stdout F {first[50:]}",
        f"{time} stderr F {second[70:]}",
    ]

    found, _ = parse(prefixed(str, "\n".join(lines)))

    assert [(one.line, one.line_count) for one in found] == [(1, 2), (2, 2)]


def test_a_line_that_was_cut_and_never_ended_is_kept() -> None:
    lines = [PREFIXES["CRI"][0](PLAIN(MOVE)), "2021-11-23T10:06:36.708Z stderr P something", "no prefix"]

    found, _ = parse(prefixed(str, "\n".join(lines)))

    assert sum(line_counts(found)) == 3


def test_lines_of_context_that_grep_prints_have_its_prefix_taken_off() -> None:
    lines = [f"a.log:8:{REFUSAL[0]}", *(f"a.log-{number}-{line}" for number, line in enumerate(REFUSAL[1:], 9))]

    [record], found = parse(prefixed(str, "\n".join(lines)))

    assert (found.prefixes, found.layout.name) == (("grep -H",), "HADOOP")
    assert (record.message.kind, record.message.from_state) == ("invalid_transition", "FINISHED")


def test_a_format_is_found_after_many_lines_that_have_none() -> None:
    noise = ["starting"] * 1700

    found, log_format = parse(prefixed(str, "\n".join([*noise, *map(PREFIXES["docker compose"][0], [PLAIN(MOVE)])])))

    assert len(found) == 1701
    assert [one.line for one in written.records(found)] == [1701]
    assert (log_format.prefixes, log_format.layout.name) == (("docker compose",), "HADOOP")


def test_a_quoted_line_of_another_format_changes_nothing() -> None:
    quoted = [f"rm-1 | {PLAIN(MOVE)}", LAYOUTS["[time] [LEVEL]"](MOVE), f"   {PLAIN(MOVE)}", UNTIMED["LEVEL"](MOVE)]
    lines = [*[PLAIN(MOVE)] * 100, *quoted, PLAIN(MOVE)]

    found, log_format = parse(prefixed(str, "\n".join(lines)))

    assert (log_format.prefixes, log_format.layout.name) == ((), "HADOOP")
    assert [one.line_count for one in written.records(found)] == [*[1] * 99, 5, 1]


def test_lines_without_the_prefix_that_was_found_are_parsed_as_they_are() -> None:
    """A script's line that quotes a log made the file one of `grep -H`, whose prefix the later lines do not have."""
    lines = [f"started: {OTHER}", *["..."] * 600, *[PLAIN(MOVE)] * 3]

    found, _ = parse(prefixed(str, "\n".join(lines)))

    assert [one.line for one in written.records(found)] == [602, 603, 604]


@pytest.mark.parametrize("text", ["", "\n\n", "no log\nat all", "ERROR: disk full\nINFO begin"])
def test_text_without_a_header_has_no_format(text: str) -> None:
    found, log_format = parse(prefixed(str, text))

    assert (log_format, written.records(found)) == (None, [])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "line",
    [
        "[" * 1_000_000 + PLAIN(MOVE),
        "INFO " * 200_000,
        "a:" * 500_000 + "INFO",
        "INFO a" + "." * 1_000_000 + "(",
        "<14>1 2021-11-23T10:06:36Z a b c d " + '[x="' * 100_000 + "INFO",
        '{"log":' + "[" * 500_000 + "INFO",
        "| INFO |" * 100_000,
    ],
    ids=["brackets", "levels", "colons", "dots", "syslog", "json", "pipes"],
)
def test_a_long_line_is_searched_in_a_time_that_its_length_explains(line: str) -> None:
    [found], _ = parse([line.encode()])

    assert found.text == line
