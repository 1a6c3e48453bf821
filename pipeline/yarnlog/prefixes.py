"""What other tools write before each line of a log: containers' runtimes, syslog, journald, grep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pipeline.yarnlog.clock import MONTHS, ZONE
from pipeline.yarnlog.headers import is_full_header

_ISO = rf"\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?: ?(?:{ZONE}))?"
_RFC_3339 = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{{1,9}})?(?:{ZONE})"
_SYSLOG_TIME = rf"(?:{'|'.join(MONTHS)}) [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?"
_COLOUR = r"(?:\x1b\[[\d;]{0,20}m)?"
_HOST_AND_TAG = r"(?P<source>[^\s|]{1,255}(?: [^\s:\[\]|]{1,255}(?:\[\d{1,10}\])?:)?)(?: |$)"
_LITERAL = r'"(?:[^"\\]|\\.){0,9999}"'


class BareLine(NamedTuple):
    """A line without its prefix."""

    text: str
    source: str | None = None
    """The container, host or file that wrote the line; None: the prefix does not name it."""
    time: str | None = None
    """The time in the prefix, as written."""
    is_whole: bool = True
    """False: the runtime has cut the line, and the source's next line continues it."""


class Prefix:
    """A kind of prefix, by a regular expression with the groups of `BareLine` that it has."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self._pattern = re.compile(pattern, re.ASCII)
        self._has_part = "part" in self._pattern.groupindex

    def taken_off(self, text: str) -> BareLine | None:
        """The line without the prefix; None if it does not begin with one."""
        found = self._pattern.match(text)
        if found is None:
            return None
        groups = found.groupdict()
        is_whole = not self._has_part or groups["part"] != "P"
        return BareLine(text[found.end() :], groups.get("source"), groups.get("time"), is_whole)


class _Blanks(Prefix):
    """Blanks before each line, such as a quotation's. A stack trace keeps its own indentation."""

    def __init__(self) -> None:
        super().__init__("blanks", r"[ \t]+(?=[^ \t])")
        self._begins_record = re.compile(r"[\[\d]|TRACE|DEBUG|INFO|WARN|ERROR|FATAL", re.ASCII)
        self._least: int | None = None

    def taken_off(self, text: str) -> BareLine | None:
        found = self._pattern.match(text)
        if found is None:
            return None
        width = found.end()
        if self._begins_record.match(text, width) is not None:
            self._least = width if self._least is None else min(width, self._least)
        elif self._least is not None:
            width = min(width, self._least)
        return BareLine(text[width:])


class _DockerJson(Prefix):
    """Docker's `json-file` driver, which cuts lines after 16 KiB; the last piece of a line ends in a line end."""

    def __init__(self) -> None:
        super().__init__("Docker's JSON", r"\{")

    def taken_off(self, text: str) -> BareLine | None:
        if not text.startswith("{"):
            return None
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return None
        line = fields.get("log")
        if not isinstance(line, str):
            return None
        source, time = fields.get("stream"), fields.get("time")
        whole = line.removesuffix("\n").removesuffix("\r")
        return BareLine(
            whole,
            source if isinstance(source, str) else None,
            time if isinstance(time, str) else None,
            is_whole=line.endswith("\n"),
        )


class _Grep(Prefix):
    """`grep -H`: the file's name; with `-n` the line's number. A line of context has `-` instead of `:`."""

    def __init__(self) -> None:
        super().__init__("grep -H", r"(?P<source>(?:[A-Za-z]:[\\/])?[^:\0]{1,4096}?):(?:\d{1,12}:)?")
        self._context = re.compile(r"-(?:\d{1,12}-)?", re.ASCII)
        self._file = ""

    def taken_off(self, text: str) -> BareLine | None:
        if self._file and text.startswith(self._file):
            context = self._context.match(text, len(self._file))
            if context is not None:
                return BareLine(text[context.end() :], self._file)
        line = super().taken_off(text)
        if line is not None and line.source is not None:
            self._file = line.source
        return line


def prefixes() -> tuple[Prefix, ...]:
    """All kinds of prefix, for one file: some remember what they saw in the lines before."""
    return (
        _Blanks(),
        Prefix("docker compose", rf"{_COLOUR}(?P<source>[A-Za-z0-9][\w.@-]{{0,254}}) *\|{_COLOUR}(?: |$){_COLOUR}"),
        _DockerJson(),
        Prefix(
            "Kubernetes (CRI)",
            rf"(?P<time>{_RFC_3339}) (?P<source>stdout|stderr) (?P<part>[PF])(?::\S{{0,99}})?(?: |$)",
        ),
        Prefix("docker logs -t", rf"(?P<time>{_RFC_3339})(?: |$)"),
        Prefix("kubectl logs --prefix", r"\[(?P<source>pod/[^\]\s]{1,999})\](?: |$)"),
        Prefix(
            "syslog (RFC 5424)",
            rf"<\d{{1,3}}>1 (?P<time>{_RFC_3339}|-) (?P<source>\S{{1,255}} \S{{1,48}} \S{{1,128}}) \S{{1,32}} "
            rf"(?:-|(?:\[[^\]\"]{{1,99}}(?:{_LITERAL}[^\]\"]{{0,99}}){{0,99}}\]){{1,99}})(?: |$)\ufeff?",
        ),
        Prefix("syslog (RFC 3164) or journald", rf"(?:<\d{{1,3}}>)?(?P<time>{_SYSLOG_TIME}) {_HOST_AND_TAG}"),
        Prefix("journald (short-iso)", rf"(?:[A-Z][a-z]{{2}} )?(?P<time>{_ISO}) {_HOST_AND_TAG}"),
        Prefix("grep -n", r"\d{1,12}[:-]"),
        _Grep(),
    )  # fmt: skip


def line_without(prefixes: Sequence[Prefix], text: str) -> BareLine | None:
    """The line without the prefixes, outermost first, as far as it has them; None: it lacks the first."""
    line: BareLine | None = None
    for prefix in prefixes:
        inner = prefix.taken_off(text if line is None else line.text)
        if inner is None:
            break
        if line is not None:
            inner = BareLine(
                inner.text,
                line.source if inner.source is None else f"{line.source or ''} {inner.source}".strip(),
                inner.time or line.time,
                inner.is_whole and line.is_whole,
            )
        line = inner
    return line


class Numbered(NamedTuple):
    """A line without its prefix, with its place in the file."""

    number: int
    """Of its first line in the file, from 1."""
    text: str
    source: str | None
    time: str | None
    written: Sequence[tuple[int, str]] | None
    """Number and text of the file's lines that hold it; None: one line, without a prefix."""


_PIECES_KEPT = 5000


def without_prefixes(prefixes: Sequence[Prefix], lines: Iterable[tuple[int, str]]) -> Iterator[Numbered]:
    """The lines without prefixes; pieces of a line that a runtime has cut are joined.

    A line that is a header as it is is left alone. A line without a prefix has the source of the line before it.
    """
    cut: dict[str | None, list[tuple[BareLine, int, str]]] = {}
    source = None
    for number, text in lines:
        line = None if is_full_header(text) else line_without(prefixes, text)
        if line is None:
            yield Numbered(number, text, source, None, None)
            continue
        source = line.source
        if line.is_whole and source not in cut:
            yield Numbered(number, line.text, source, line.time, ((number, text),))
            continue
        pieces = cut.setdefault(source, [])
        pieces.append((line, number, text))
        if line.is_whole or len(pieces) >= _PIECES_KEPT:
            yield _joined(cut.pop(source))
    yield from map(_joined, cut.values())


def _joined(pieces: Sequence[tuple[BareLine, int, str]]) -> Numbered:
    first, number, _ = pieces[0]
    text = "".join(line.text for line, _, _ in pieces)
    return Numbered(number, text, first.source, first.time, [(place, written) for _, place, written in pieces])
