"""What `dispatcher yarn-log` says about how it read the logs."""

from __future__ import annotations

from rich.console import Console

from dispatcher.cli.console import echo, say
from pipeline.yarnlog import LogSummary
from pipeline.yarnlog.headers import Layout

_SAMPLES = 5
_SAMPLE_CHARACTERS = 300
_UNTIMED = "a record without a time has the prefix's, or the time of the record before, or 1970"


def print_formats(summary: LogSummary, console: Console, listed: int) -> None:
    """A line for each file with a prefix or without times; at most `listed`."""
    lines = []
    for file, found in summary.reading.formats.items():
        if found is None:
            continue
        if found.prefixes:
            lines.append(f"{shown(str(file))}: prefix of each line: {', '.join(found.prefixes)}")
        if found.layout >= Layout.UNTIMED:
            lines.append(f"{shown(str(file))}: {_UNTIMED}")
    for line in lines[:listed]:
        say(console, line)
    if len(lines) > listed:
        say(console, f"and {len(lines) - listed:,} more such lines; list more with --listed")


def print_missed(summary: LogSummary, console: Console) -> None:
    """The lines that should have been parsed, with a sample, and warnings on standard error of what was not read."""
    reading = summary.reading
    if reading.missed_lines:
        say(console, "")
        say(console, f"{reading.missed_lines:,} unparsed lines look like transitions or audit lines:")
        for missed in reading.missed[:_SAMPLES]:
            say(console, f"{shown(str(missed.file))}:{missed.line}: {shown(missed.text)}")
        if reading.missed_lines > _SAMPLES:
            say(console, f"and {reading.missed_lines - _SAMPLES:,} more")
    for warning in warnings(summary):
        echo(f"warning: {warning}", err=True)


def warnings(summary: LogSummary) -> list[str]:
    """A line for each reason for which the logs count as not understood."""
    reading, found = summary.reading, []
    for file in reading.unread:
        found.append(f"{shown(str(file))}: nothing was read: no line is the beginning of a record in a known format")
    if not reading.unread and not summary.parsed_lines:
        found.append("no line is of a known kind: no transition, refused event, registration, queue size or audit line")
    if reading.missed_lines:
        found.append(f"{reading.missed_lines:,} lines look like transitions or audit lines and were not parsed")
    return found


def shown(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= _SAMPLE_CHARACTERS else f"{text[:_SAMPLE_CHARACTERS]}..."
