"""The layouts in which logs are written, the prefixes that other tools write before each line, and what is parsed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.yarnlog.parser import parse_lines

LOGGER = "org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppImpl"
AT = "2021-11-23 10:06:36,708"
# 2021-11-23 10:06:36 UTC
SECOND_NS = 1_637_661_996_000_000_000
AT_NS = SECOND_NS + 708_000_000
ZULU = "2021-11-23T10:06:36.708Z"
THREAD = "AsyncDispatcher event handler"
BRACKETS = "Task [a] of 2"
"""Another name of a thread."""

Layout = Callable[[str], str]
"""A message of `LOGGER` at `AT`, as a layout writes it."""

LAYOUTS: Mapping[str, Layout] = {
    "Hadoop": lambda message: f"{AT} INFO {LOGGER}: {message}",
    "a container's": lambda message: f"{AT} INFO [{THREAD}] {LOGGER}: {message}",
    "arrow": lambda message: f"[INFO ] {AT}(4521) --> [{THREAD}] {LOGGER}.handle(RMAppImpl.java:779): {message}",
    "arrow in a constructor": lambda message: (
        f"[WARN ] {AT}(7) --> [main] {LOGGER}$1.<init>(RMAppImpl.java:1): {message}"
    ),
    "[time] [LEVEL]": lambda message: f"[{AT}] [INFO] {LOGGER}: {message}",
    "[time] [LEVEL] [thread]": lambda message: f"[{AT}] [INFO] [main] {LOGGER} - {message}",
    "[time][LEVEL][thread][class]": lambda message: f"[{AT}][INFO ][main][{LOGGER}] {message}",
    "[time] LEVEL": lambda message: f"[{AT}] INFO  {LOGGER} (RMAppImpl.java:handle(779)) - {message}",
    "LEVEL time": lambda message: f"INFO  {AT} {LOGGER}: {message}",
    "LEVEL [time]": lambda message: f"INFO  [{AT}] [main] {LOGGER}: {message}",
    "LEVEL time thread": lambda message: f"ERROR {AT} [main] {LOGGER}:779 - {message}",
    "pipes, class last": lambda message: f"{AT} | INFO  | {THREAD} | {message} | {LOGGER}.handle(RMAppImpl.java:779)",
    "pipes, file last": lambda message: f"{AT} | INFO  | {THREAD} | {message} | RMAppImpl.java:779",
    "pipes, class first": lambda message: f"{AT} | INFO  | {THREAD} | {LOGGER} | {message}",
    "pipes, class and colon": lambda message: f"{AT} | INFO  | {THREAD} | {LOGGER}: {message}",
    "class (thread)": lambda message: f"{AT} INFO {LOGGER} ({THREAD}): {message}",
    "23 Nov 2021": lambda message: f"23 Nov 2021 10:06:36,708 INFO {LOGGER}: {message}",
    "23 Nov 2021, debugging": lambda message: (
        f"23 Nov 2021 10:06:36,708 INFO  [main] {LOGGER} (A.java:b(1)) - {message}"
    ),
    "2021/11/23": lambda message: f"2021/11/23 10:06:36.708 INFO {LOGGER}: {message}",
    "wrapped": lambda message: f"{AT} INFO {LOGGER}:\n    {message}",
    "wrapped after a dash": lambda message: f"{AT} INFO {LOGGER} (RMAppImpl.java:handle(779)) -\n{message}",
    "trailing blanks": lambda message: f"{AT} INFO {LOGGER}: {message} \t ",
    "debugging": lambda message: f"{AT} INFO  rmapp.RMAppImpl (RMAppImpl.java:<init>(123)) - {message}",
    "log4j 2": lambda message: f"2021-11-23 10:06:36.708 [main] ERROR {LOGGER} - {message}",
    "a test's cluster": lambda message: f"2021-11-23 10:06:36 INFO  RMAppImpl:422 - {message}",
    "console": lambda message: f"21/11/23 10:06:36 WARN {LOGGER}: {message}",
    "zone": lambda message: f"2021-11-23T12:06:36.708+0200 INFO {LOGGER}: {message}",
    "zone in the west": lambda message: f"2021-11-23 05:36:36 -04:30 INFO {LOGGER}: {message}",
    "zone at sea": lambda message: f"2021-11-23 10:06:36Z FATAL {LOGGER}: {message}",
    "brackets in a thread": lambda message: f"{AT} INFO [{BRACKETS}] {LOGGER}: {message}",
}
UNTIMED: Mapping[str, Layout] = {
    "LEVEL": lambda message: f"INFO {LOGGER}: {message}",
    "[LEVEL]": lambda message: f"[INFO] {LOGGER}: {message}",
    "LEVEL [thread]": lambda message: f"INFO  [{THREAD}] {LOGGER}: {message}",
    "[thread] LEVEL": lambda message: f"[{THREAD}] INFO {LOGGER} - {message}",
    "elapsed [thread] LEVEL": lambda message: f"4521 [{THREAD}] INFO  {LOGGER}  - {message}",
    "class": lambda message: f"{LOGGER}: {message}",
}

Prefix = Callable[[str], str]
"""A line, as a tool writes it: a line, or several if it cuts lines."""

PREFIXES: Mapping[str, tuple[Prefix, tuple[str, ...]]] = {
    "blanks": (lambda line: f"   {line}", ("blanks",)),
    "tab": (lambda line: f"\t{line}", ("blanks",)),
    "docker compose": (lambda line: f"resourcemanager-1  | {line}", ("docker compose",)),
    "docker-compose": (lambda line: f"\x1b[36mrm_1    |\x1b[0m {line}", ("docker compose",)),
    "docker compose -t": (lambda line: f"rm-1  | {ZULU} {line}", ("docker compose", "docker logs -t")),
    "docker logs -t": (lambda line: f"{ZULU} {line}", ("docker logs -t",)),
    "docker's JSON": (
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": ZULU}, ensure_ascii=False),
        ("Docker's JSON",),
    ),
    "docker's JSON, cut": (
        lambda line: "\n".join(
            json.dumps({"log": piece, "stream": "stdout", "time": ZULU}) for piece in (line[:40], f"{line[40:]}\n")
        ),
        ("Docker's JSON",),
    ),
    "CRI": (lambda line: f"{ZULU} stderr F {line}", ("Kubernetes (CRI)",)),
    "CRI, cut": (
        lambda line: f"{ZULU} stdout P {line[:9]}\n{ZULU} stdout P {line[9:40]}\n{ZULU} stdout F {line[40:]}",
        ("Kubernetes (CRI)",),
    ),
    "kubectl logs --prefix": (lambda line: f"[pod/rm-0/resourcemanager] {line}", ("kubectl logs --prefix",)),
    "syslog, RFC 3164": (
        lambda line: f"<14>Nov 23 10:06:36 host1 yarn-resourcemanager[1234]: {line}",
        ("syslog (RFC 3164) or journald",),
    ),
    "syslog, RFC 3164, one digit": (
        lambda line: f"Nov  3 10:06:36 host1 yarn: {line}",
        ("syslog (RFC 3164) or journald",),
    ),
    "syslog, RFC 5424": (
        lambda line: f'<165>1 {ZULU} host1.example yarn 1234 ID47 [a@1 b="]\\"" c="d"][e@2 f=""] \ufeff{line}',
        ("syslog (RFC 5424)",),
    ),
    "syslog, RFC 5424, no data": (lambda line: f"<14>1 {ZULU} host1 yarn - - - {line}", ("syslog (RFC 5424)",)),
    "journald": (lambda line: f"Nov 23 10:06:36 host1 yarn[1234]: {line}", ("syslog (RFC 3164) or journald",)),
    "journald, short-iso": (
        lambda line: f"2021-11-23T10:06:36+0000 host1 yarn[1234]: {line}",
        ("journald (short-iso)",),
    ),
    "journald, short-iso-precise": (
        lambda line: f"2021-11-23T11:06:36.708123+01:00 host1 yarn[1234]: {line}",
        ("journald (short-iso)",),
    ),
    "journald, short-full": (
        lambda line: f"Tue 2021-11-23 10:06:36 UTC host1 yarn[1234]: {line}",
        ("journald (short-iso)",),
    ),
    "grep -n": (lambda line: f"17:{line}", ("grep -n",)),
    "grep -H": (lambda line: f"/var/log/hadoop-yarn/rm-host.log:{line}", ("grep -H",)),
    "grep -Hn": (lambda line: f"logs of rm/rm.log.1:17:{line}", ("grep -H",)),
    "grep over docker compose": (
        lambda line: f"a.log:rm-1  | {ZULU} {line}",
        ("grep -H", "docker compose", "docker logs -t"),
    ),
}


def prefixed(prefix: Prefix, text: str) -> list[bytes]:
    """The lines of a text, each with the prefix, as a binary file yields them."""
    return "".join(f"{prefix(line)}\n" for line in text.split("\n")).encode(errors="surrogateescape").splitlines(True)


def parsed(lines: Iterable[bytes], **options: Any) -> list[Any]:
    """The records, and the lines outside of records as pairs of their number and their text."""
    return list(parse_lines(lines, **options))


def records(found: Iterable[Any]) -> list[Any]:
    return [one for one in found if hasattr(one, "message")]
