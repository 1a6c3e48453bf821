"""Parses what a logging layout writes before the message: a time, a level, a thread and a logger.

The default layouts of Hadoop 2 and 3, which `read_header` parses in every file:

    2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: message
    2015-10-18 18:01:47,978 INFO org.apache.hadoop.yarn.event.AsyncDispatcher: message
    2015-10-18 18:01:47,978 INFO  [main] rmapp.RMAppImpl (RMAppImpl.java:handle(123)) - message
    2015-10-18T18:01:47.978+0200 INFO  RMAppImpl:123 - message
    15/10/18 18:01:47 WARN resourcemanager.RMAuditLogger: message

Other layouts, which are parsed in the files that use them:

    [INFO ] 2015-10-18 18:01:47,978(4521) --> [main] org.apache.hadoop.a.RMAppImpl.handle(RMAppImpl.java:779): message
    [2015-10-18 18:01:47,978] [INFO] [main] a.RMAppImpl - message
    INFO  2015-10-18 18:01:47,978 [main] a.RMAppImpl: message
    2015-10-18 18:01:47,978 | INFO  | main | message | a.RMAppImpl.handle(RMAppImpl.java:779)
    2015-10-18 18:01:47,978 | INFO  | main | a.RMAppImpl | message
    2015-10-18 18:01:47,978 INFO a.RMAppImpl (AsyncDispatcher event handler): message
    18 Oct 2015 18:01:47,978 INFO a.RMAppImpl: message
    INFO [main] a.RMAppImpl: message
    a.RMAppImpl: message
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from enum import IntEnum
from typing import NamedTuple

from pipeline.yarnlog.clock import MONTHS, ZONE, LogClock, with_year
from pipeline.yarnlog.messages import read_message

_LEVELS = "TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL"
# Only years whose nanoseconds fit into a long. Bounded lengths keep matching linear in the length of a line.
_START = (
    r"((?:19|20|21)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d|\d\d/\d\d/\d\d \d\d:\d\d:\d\d)(?:[,.](\d{1,9}))?"
    rf"(?: ?({ZONE}))?[ \t]+"
    # A time in the thread's place is the header's own, after a prefix's.
    rf"(?:\[(?!\d{{4}}-)(.{{0,200}}?)\][ \t]+)?({_LEVELS})\b[ \t]*(?:\[(?!\d{{4}}-)(.{{0,200}}?)\][ \t]+)?"
)
_NAME = r"([\w.$-]{1,300})"
_AFTER_NAME = r"(?:(?: \([^\s()]{1,300}\(\d+\)\)|:\d+)?[ \t]+-(?:[ \t]|$)|:(?: |$))"
_WITH_LOGGER = re.compile(_START + _NAME + _AFTER_NAME + "(.*)", re.ASCII | re.DOTALL)
_WITHOUT_LOGGER = re.compile(_START + "()(.*)", re.ASCII | re.DOTALL)

# The parts of the other layouts, in any order.
_BETWEEN = re.compile(r"(?:[ \t]+|-->|[-|:](?=[ \t]))*", re.ASCII)
_TIME = re.compile(
    r"\[?((?:(?:19|20|21)\d\d[-/]\d\d[-/]\d\d|\d\d/\d\d/\d\d"
    rf"|\d{{1,2}}[ -](?:{'|'.join(MONTHS)})[ -](?:19|20|21)\d\d)[ T]\d\d:\d\d:\d\d)(?:[,.](\d{{1,9}}))?"
    rf"(?: ?({ZONE}))?\]?(?:\(\d{{1,18}}\))?(?![\w.])",
    re.ASCII,
)
_LEVEL = re.compile(rf"[\[<(]?[ \t]{{0,9}}({_LEVELS})(?![\w.$])[ \t]{{0,9}}[\]>)]?", re.ASCII)
_THREAD = re.compile(r"\[(?!pod/)((?:[^\[\]]|\[[^\[\]]{0,100}\]){0,200})\]", re.ASCII)
_ELAPSED = re.compile(r"\d{1,12}[ \t]+(?=\[)", re.ASCII)
_PIPE = re.compile(r"[ \t]*\|", re.ASCII)

_CODE = r"\([\w$]{1,300}\.\w{1,20}:\d{1,9}\)|\(Unknown Source\)|\(Native Method\)"
_METHOD = rf"{_NAME}\.[\w$<>]{{1,300}}(?:{_CODE})"
_REST = "(?P<message>.*)"
_LOGGERS = tuple(
    re.compile(pattern, re.ASCII | re.DOTALL)
    for pattern in (
        rf"{_METHOD}[ \t]*(?:[-:|](?:[ \t]|$)|$){_REST}",
        rf"{_NAME} \((?P<thread>[^()]{{0,200}})\):(?:[ \t]|$){_REST}",
        rf"{_NAME}{_AFTER_NAME}{_REST}",
        rf"\[{_NAME}\](?:[ \t]+|[ \t]*[-:|][ \t]+|$){_REST}",
    )
)
_BRACKETED = _LOGGERS[-1]
_ANONYMOUS = re.compile(r"(?:\$\d+)+\Z", re.ASCII)
_IN_CLASS = re.compile(
    rf"(?:{_METHOD}|([\w$]{{1,300}})\.(?:java|scala):\d{{1,9}}|{_NAME}(?: ?\(\S{{1,300}}\))?)", re.ASCII
)
_QUALIFIED = re.compile(r"[\w$-]+(?:\.[\w$-]+)+", re.ASCII)
_FAILURE = ("Exception", "Error")


class RecordHeader(NamedTuple):
    """The fields of a record's first line."""

    at: int | None
    """Unix ns; None if the layout has no time."""
    level: str
    """Empty if the layout omits it."""
    thread: str | None
    """None if the layout omits it."""
    logger: str
    """What the line has: with its package, abbreviated or without; empty if the line has none."""
    message: str
    """Without blanks at its end."""


class HeaderLayout(IntEnum):
    """The layouts that are looked for in a file; each includes all before it."""

    HADOOP = 0
    OTHER = 1
    UNTIMED = 2
    NAME_ONLY = 3


HeaderReader = Callable[[str, LogClock], RecordHeader | None]


def read_header(line: str, clock: LogClock) -> RecordHeader | None:
    """The header in one of Hadoop's layouts; None if the line has no header, as in a stack trace."""
    if not "0" <= line[:1] <= "9":  # rejects most other lines without a regex
        return None
    found = _WITH_LOGGER.match(line) or _WITHOUT_LOGGER.match(line)
    if found is None:
        return None
    text, fraction, zone, thread, level, later_thread, logger, message = found.groups()
    at = clock.unix_ns(text, fraction, zone)
    if at is None:
        return None
    # For each line of a log: the named tuple's own call takes twice as long.
    parts = at, level, later_thread if thread is None else thread, logger, message.rstrip()
    return tuple.__new__(RecordHeader, parts)


def header_reader(layout: HeaderLayout) -> HeaderReader:
    """The function that parses headers in this layout and in all before it."""
    return _READERS[layout]


def _read_other(line: str, clock: LogClock) -> RecordHeader | None:
    of_hadoop = read_header(line, clock)
    if of_hadoop is not None and of_hadoop.logger:
        return of_hadoop
    header = _parts(line, clock)
    is_full = header is not None and header.at is not None and header.level and header.logger
    return header if is_full else of_hadoop


def _read_untimed(line: str, clock: LogClock) -> RecordHeader | None:
    header = _read_other(line, clock)
    if header is not None:
        return header
    header = _parts(line, clock)
    return header if header is not None and header.level and header.logger else None


def _read_name_only(line: str, clock: LogClock) -> RecordHeader | None:
    header = _read_untimed(line, clock)
    if header is not None:
        return header
    header = _parts(line, clock)
    if header is None or not header.logger or header.logger.endswith(_FAILURE):
        return None
    # Any text may begin with a name and a colon: only a message of a known kind shows that this is a record.
    return None if read_message(header.logger, header.message) is None else header


_READERS: dict[HeaderLayout, HeaderReader] = {
    HeaderLayout.HADOOP: read_header,
    HeaderLayout.OTHER: _read_other,
    HeaderLayout.UNTIMED: _read_untimed,
    HeaderLayout.NAME_ONLY: _read_name_only,
}


def _parts(line: str, clock: LogClock) -> RecordHeader | None:
    """The parts of the header, in any order; None if it has two times, or one that does not exist."""
    at: int | None = None
    level, thread = "", None
    elapsed = _ELAPSED.match(line)
    place = 0 if elapsed is None else elapsed.end()
    while True:
        between = _BETWEEN.match(line, place)
        assert between is not None  # it matches the empty string
        place = between.end()
        if (found := _TIME.match(line, place)) is not None:
            if at is not None:
                return None  # one of the times is a prefix's
            at = clock.unix_ns(*found.groups())
            if at is None:
                return None
        elif not level and (found := _LEVEL.match(line, place)) is not None:
            level = found[1]
        elif thread is None and (found := _THREAD.match(line, place)) is not None:
            thread = found[1]
        else:
            break
        place = found.end()
        if at is not None and level and thread is None and (pipe := _PIPE.match(line, place)) is not None:
            return _between_pipes(at, level, line[pipe.end() :])
    return _with_logger(at, level, thread, line[place:])


def _with_logger(at: int | None, level: str, thread: str | None, rest: str) -> RecordHeader:
    for pattern in _LOGGERS:
        found = pattern.match(rest)
        if found is None:
            continue
        logger, message = _ANONYMOUS.sub("", found[1]), found["message"].rstrip()
        if pattern is _BRACKETED:  # [thread] [class] or [class] [thread]
            if thread is not None and _is_class(thread) and not _is_class(logger):
                thread, logger = logger, thread
            elif not _is_class(logger) and not logger[0].isupper():
                break
        return RecordHeader(at, level, thread or found.groupdict().get("thread"), logger, message)
    if thread is not None and _is_class(thread):
        return RecordHeader(at, level, None, thread, rest.rstrip())
    return RecordHeader(at, level, thread, "", rest.rstrip())


def _is_class(name: str) -> bool:
    return _QUALIFIED.fullmatch(name) is not None


def _between_pipes(at: int, level: str, rest: str) -> RecordHeader:
    """`thread | message | class.method(File.java:1)`, `thread | class | message` or `class | message`."""
    thread, _, rest = (part.strip() for part in rest.partition("|"))
    message, _, last = (part.strip() for part in rest.rpartition("|"))
    first, separator, after_first = (part.strip() for part in rest.partition("|"))
    in_first, in_last = _IN_CLASS.fullmatch(first), _IN_CLASS.fullmatch(last)
    if message and in_last is not None and (in_first is None or in_last[3] is None):
        return RecordHeader(at, level, thread, _class_of(in_last), message)
    if separator and in_first is not None:
        return RecordHeader(at, level, thread, _class_of(in_first), after_first)
    if _is_class(thread):
        return RecordHeader(at, level, None, thread, rest)
    return _with_logger(at, level, thread, rest)


def _class_of(place: re.Match[str]) -> str:
    return _ANONYMOUS.sub("", next(filter(None, place.groups())))


def time_of_prefix(text: str, clock: LogClock, latest: date) -> int | None:
    """The time in a prefix in Unix ns; a time without a year is of the last one in which it is not after `latest`."""
    found = _TIME.fullmatch(with_year(text, latest))
    return None if found is None else clock.unix_ns(*found.groups())


def is_full_header(line: str) -> bool:
    """Whether the line is a header with a logger in one of Hadoop's layouts."""
    return _WITH_LOGGER.match(line) is not None
