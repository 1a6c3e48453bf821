"""An application's course as SVG: a row of bars for the application, for each attempt, and for each container."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from markupsafe import Markup

from statemachines.resourcemanager.web.pages import formats
from statemachines.resourcemanager.web.pages.histories import Move

_WIDTH: Final = 1000.0
_LABELS: Final = 190.0
_ROW: Final = 20.0
_BAR: Final = 12.0
_AXIS: Final = 20.0
_MOST_MARKS: Final = 6
_STEPS_S: Final = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400)
_WAITS: Final = frozenset(
    {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "SCHEDULED", "ALLOCATED_SAVING", "ALLOCATED", "ACQUIRED", "RESERVED"}
    | {"LAUNCHED", "LAUNCHED_UNMANAGED_SAVING"}
)
_GOOD: Final = frozenset({"FINISHED", "COMPLETED"})
_BAD: Final = frozenset({"FAILED", "KILLED", "EXPIRED", "RELEASED"})


class Bar(NamedTuple):
    """One stretch of a row. Unix ms; `end_ms` None: it goes on."""

    state: str
    begin_ms: int
    end_ms: int | None


class Row(NamedTuple):
    label: str
    title: str
    bars: tuple[Bar, ...]
    end: str | None = None
    """The state in which it ended."""


def row_of(label: str, title: str, moves: Sequence[Move], begun_ms: int | None = None) -> Row | None:
    """A row from moves, oldest first; None: nothing to draw. `begun_ms`: when it was made, in the state NEW."""
    steps = [*([Move(begun_ms, "NEW")] if begun_ms is not None else []), *moves]
    if not steps:
        return None
    bars = [Bar(one.state, one.at_ms, next.at_ms) for one, next in pairwise(steps) if next.at_ms > one.at_ms]
    last = steps[-1]
    if last.state in _GOOD or last.state in _BAD:
        return Row(label, title, tuple(bars) or (Bar(last.state, last.at_ms, last.at_ms),), last.state)
    return Row(label, title, (*bars, Bar(last.state, last.at_ms, None)))


def draw(rows: Sequence[Row], now_ms: int, begin_ms: int, end_ms: int | None) -> Markup:
    """The rows on one axis of time, which reaches from `begin_ms` to `end_ms`, or to now."""
    last_ms = max([end_ms or now_ms, *(bar.end_ms or 0 for row in rows for bar in row.bars)])
    span_ms = max(1, last_ms - begin_ms)
    height = _AXIS + _ROW * len(rows)
    drawn = [_axis(begin_ms, span_ms, height)]
    drawn += [_row(row, _AXIS + _ROW * number, begin_ms, last_ms, span_ms) for number, row in enumerate(rows)]
    return Markup('<svg class="timeline" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="Timeline">{}</svg>').format(
        _WIDTH, height, Markup("").join(drawn)
    )


def _axis(begin_ms: int, span_ms: int, height: float) -> Markup:
    step_s = next((each for each in _STEPS_S if span_ms / 1000 / each <= _MOST_MARKS), span_ms / 1000 / _MOST_MARKS)
    marks, at_s = [], 0.0
    while at_s * 1000 <= span_ms:
        x = _LABELS + (_WIDTH - _LABELS) * at_s * 1000 / span_ms
        anchor = "end" if x > _WIDTH - 40 else "start" if at_s == 0 else "middle"
        text = "start" if at_s == 0 else f"+{formats.duration(at_s)}"
        marks.append(
            Markup(
                '<line x1="{0:.1f}" x2="{0:.1f}" y1="16" y2="{1:.0f}"></line>'
                '<text x="{0:.1f}" y="11" text-anchor="{2}">{3}</text>'
            ).format(x, height, anchor, text)
        )
        at_s += step_s
    return Markup('<g class="axis">{}</g>').format(Markup("").join(marks))


def _row(row: Row, top: float, begin_ms: int, last_ms: int, span_ms: int) -> Markup:
    middle = top + _ROW / 2
    pieces = [
        Markup('<text class="label" x="0" y="{:.1f}"><title>{}</title>{}</text>').format(
            middle + 4, formats.shown(row.title, 200), formats.shown(row.label, 30)
        )
    ]
    for bar in row.bars:
        left = _at(bar.begin_ms, begin_ms, span_ms)
        right = _at(bar.end_ms if bar.end_ms is not None else last_ms, begin_ms, span_ms)
        pieces.append(
            Markup(
                '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.0f}" rx="2"><title>{}</title></rect>'
            ).format(_style(row, bar), left, middle - _BAR / 2, max(1.5, right - left), _BAR, _told(row, bar, last_ms))
        )
    return Markup("").join(pieces)


def _at(ms: int, begin_ms: int, span_ms: int) -> float:
    return _LABELS + (_WIDTH - _LABELS) * min(1.0, max(0.0, (ms - begin_ms) / span_ms))


def _style(row: Row, bar: Bar) -> str:
    if bar.state in _WAITS:
        return "wait"
    if row.end in _BAD or bar.state in _BAD:
        return "bad"
    if row.end in _GOOD or bar.state in _GOOD:
        return "good"
    return "run" if bar.state == "RUNNING" else "idle"


def _told(row: Row, bar: Bar, last_ms: int) -> str:
    begun = datetime.fromtimestamp(bar.begin_ms / 1000, UTC)
    took = formats.duration(((bar.end_ms if bar.end_ms is not None else last_ms) - bar.begin_ms) / 1000)
    ended = f", then {row.end}" if row.end and bar is row.bars[-1] else ""
    return f"{bar.state} for {took}{' so far' if bar.end_ms is None else ''}, from {begun:%H:%M:%S} UTC{ended}"
