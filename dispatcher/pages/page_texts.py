"""Texts, times and small drawings on the pages. Everything foreign passes `shown` before it reaches a template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from dispatcher.util import figures
from dispatcher.util.figures import NOTHING, memory, percent, thousandths
from dispatcher.util.terminal import printable

LONGEST: Final = 2000
"""Characters of a text that nothing else has cut."""
_MOST_MS: Final = 253_402_300_799_000  # the end of the year 9999
_STATES: Final = {
    "run": ("RUNNING", "STARTED", "ALLOCATED", "ACQUIRED"),
    "good": ("FINISHED", "SUCCEEDED", "COMPLETED"),
    "wait": ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "SCHEDULED", "DECOMMISSIONING", "RESERVED", "LAUNCHED"),
    "bad": ("FAILED", "KILLED", "LOST", "UNHEALTHY", "STOPPED", "EXPIRED"),
}
_STYLES: Final = {state: style for style, states in _STATES.items() for state in states}


def clean(value: Any) -> Any:
    """What a template prints: markup as it is, foreign text without control, bidirectional and other unseen characters.

    They appear as escapes, such as `\\u202e`. Longer texts are cut.
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _cut(value, LONGEST)


def shown(text: str | None, most: int = 80) -> str:
    """One line of at most `most` characters, cut with `...`; empty for None."""
    return _cut(text, most) if text is not None else ""


def words(text: str | None, most: int) -> str:
    """One line of at most `most` characters, cut between two words: never within a number."""
    if text is None or len(text) <= most:
        return shown(text, most)
    head = text[: most - 3]
    return f"{shown(head.rpartition(' ')[0] or head, most)} ..."


def paragraph(text: str, most: int = 8000) -> Markup:
    """Foreign text of several lines."""
    is_cut = len(text) > most
    lines = [printable(line) for line in text[:most].replace("\r\n", "\n").split("\n")]
    return escape("\n".join(lines) + ("..." if is_cut else ""))


def _cut(text: str, most: int) -> str:
    return printable(text) if len(text) <= most else printable(text[: most - 3]) + "..."


def bytes_of(number: float | None) -> str:
    return NOTHING if number is None else figures.size(number)


def rate(per_s: float | None) -> str:
    """
    >>> [rate(0), rate(0.04), rate(0.26), rate(1234.5)]
    ['0', '< 0.1', '0.3', '1,234']
    """
    if per_s is None:
        return NOTHING
    if 0 < per_s < 0.05:
        return "< 0.1"
    return figures.decimal(per_s, 1 if 0 < per_s < 0.95 else 0)


def duration(seconds: float | None) -> str:
    """In whole seconds from one second up, as the script writes durations that grow.

    >>> [duration(0.0021), duration(7.4), duration(3725)]
    ['2.1 ms', '7 s', '1 h 2 min']
    """
    return figures.duration(seconds if seconds is None or seconds < 1 else math.floor(seconds))


def moment(ms: int | None, *, exact: bool = False) -> Markup:
    """A time in UTC, which the script rewrites in the viewer's zone. `exact`: with its milliseconds."""
    if ms is None or not 0 <= ms <= _MOST_MS:
        return Markup(NOTHING)
    at = datetime.fromtimestamp(ms / 1000, UTC)
    machine = f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"
    text = f"{at:%Y-%m-%d %H:%M:%S}.{ms % 1000:03} UTC" if exact else f"{at:%Y-%m-%d %H:%M:%S} UTC"
    precise = Markup(' data-exact="1"') if exact else ""
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(machine, machine, precise, text)


def clock(ms: int | None) -> Markup:
    """The time of day in UTC, which the script rewrites."""
    if ms is None or not 0 <= ms <= _MOST_MS:
        return Markup(NOTHING)
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return Markup('<time datetime="{0:%Y-%m-%dT%H:%M:%S}Z" data-clock="1">{0:%H:%M:%S} UTC</time>').format(at)


def since(begun_ms: int | None, now_ms: int, ended_ms: int | None = None) -> Markup:
    """How long something takes, growing, or took."""
    if begun_ms is None:
        return Markup(NOTHING)
    if ended_ms is not None:
        return escape(duration(max(0, ended_ms - begun_ms) / 1000))
    return Markup('<span data-since="{}">{}</span>').format(begun_ms, duration(max(0, now_ms - begun_ms) / 1000))


def chip(state: str) -> Markup:
    """A state or final status, coloured."""
    return Markup('<span class="chip {}">{}</span>').format(_STYLES.get(state, ""), shown(state, 40))


def bar(share: float, label: str = "", *, warns: bool = True) -> Markup:
    """A bar of a share of 1; what is beyond 1 fills it."""
    width = min(100.0, max(0.0, 100 * share))
    style = "used high" if warns and share > 0.9 else "used"
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="10" rx="2"></rect>'
        '<rect class="{}" width="{:.2f}" height="10" rx="2"></rect></svg>'
    ).format(label or percent(share), style, width)


def sparkline(values: Sequence[float | None], least_top: float = 1.0) -> Markup:
    """A curve of the last values, from 0 to their maximum or `least_top`, with a gap where one is None."""
    known = [value for value in values if value is not None]
    if len(values) < 2 or not known:
        return Markup('<svg class="spark" viewBox="0 0 100 24" aria-hidden="true"></svg>')
    top, last = max(*known, least_top), len(values) - 1
    areas, lines = [], []
    for is_known, run in groupby(enumerate(values), lambda each: each[1] is not None):
        if is_known:
            places = [(100 * at / last, 23 - 22 * (value or 0.0) / top) for at, value in run]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            areas.append(f"M{places[0][0]:.1f},24 L{points} L{places[-1][0]:.1f},24 Z")
            lines.append(f"M{points}")
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="area" d="{}"></path><path d="{}"></path></svg>'
    ).format(" ".join(areas), " ".join(lines))


def urlencode(text: object) -> str:
    """Foreign text as part of an address. Jinja's own raises for a lone surrogate."""
    return quote(str(text), errors="replace")


def joined(texts: Iterable[str], nothing: str = NOTHING, most: int = 10) -> str:
    """The first texts, and how many more there are."""
    found = list(texts)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(shown(each) for each in found[:most]) + more or nothing


FILTERS: Final = {
    "shown": shown,
    "words": words,
    "paragraph": paragraph,
    "count": figures.count,
    "counted": figures.counted,
    "rate": rate,
    "percent": percent,
    "memory": memory,
    "vcores": thousandths,
    "bytes": bytes_of,
    "duration": duration,
    "moment": moment,
    "exact": partial(moment, exact=True),
    "clock": clock,
    "whole": int,
    "chip": chip,
    "joined": joined,
    "urlencode": urlencode,
}
GLOBALS: Final = {"since": since, "bar": bar, "sparkline": sparkline, "NOTHING": NOTHING}
