"""An application's course: a row of bars for the application, for each attempt, and for each container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from markupsafe import Markup

from dispatcher.pages import page_texts
from statemachines.resourcemanager.web.pages.histories import Entered

_LEAST: Final = 0.4
"""Width of the shortest bar, in percent: a bit more than a pixel on a small screen."""
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
    failure: str = ""
    """What says that it has failed although that is a state of success, such as an exit status."""

    @property
    def is_bad(self) -> bool:
        return self.end in _BAD or bool(self.failure)


def row_of(label: str, title: str, moves: Sequence[Entered], begun_ms: int | None = None, failure: str = "") -> Row:
    """A row from moves, oldest first, of which there is at least one.

    `begun_ms`: when it was made. Until the first move, it was in the state that this one left. `failure`: see Row.
    """
    steps = [*moves] if begun_ms is None else [Entered(begun_ms, moves[0].from_state or "NEW"), *moves]
    bars = [Bar(one.state, one.at_ms, next.at_ms) for one, next in pairwise(steps) if next.at_ms > one.at_ms]
    last = steps[-1]
    if last.state in _GOOD or last.state in _BAD:
        drawn = tuple(bars) or (Bar(last.state, last.at_ms, last.at_ms),)
        return Row(label, title, drawn, last.state, failure)
    return Row(label, title, (*bars, Bar(last.state, last.at_ms, None)))


def draw(rows: Sequence[Row], now_ms: int, begin_ms: int, end_ms: int | None) -> Markup:
    """The rows on one axis of time, which reaches from `begin_ms` to `end_ms`, or to now.

    Places and lengths are parts of the width: a narrower page has shorter bars, and texts of the same size.
    """
    last_ms = max([end_ms or now_ms, *(bar.end_ms or 0 for row in rows for bar in row.bars)])
    span_ms = max(1, last_ms - begin_ms)
    marks = list(_marks(span_ms))
    lines = Markup("").join(
        Markup('<line x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"></line>').format(place) for place, _ in marks
    )
    drawn = Markup("").join(_row(row, lines, begin_ms, last_ms, span_ms) for row in rows)
    return Markup('<div class="timeline">{}{}</div>').format(_axis(marks), drawn)


def _marks(span_ms: int) -> Iterator[tuple[float, str]]:
    """Place (percent) and text of each mark of the axis."""
    step_s = next((each for each in _STEPS_S if span_ms / 1000 / each <= _MOST_MARKS), span_ms / 1000 / _MOST_MARKS)
    at_s = 0.0
    while at_s * 1000 <= span_ms:
        yield 100 * at_s * 1000 / span_ms, "start" if at_s == 0 else f"+{page_texts.duration(at_s)}"
        at_s += step_s


def _axis(marks: Sequence[tuple[float, str]]) -> Markup:
    """The texts of the axis; on a small screen every second one."""
    texts = [
        Markup('<text class="{}" x="{:.2f}%" y="11" text-anchor="{}">{}</text>').format(
            "c2" if number % 2 else "", place, "end" if place > 94 else "start" if place == 0 else "middle", text
        )
        for number, (place, text) in enumerate(marks)
    ]
    return Markup('<svg class="axis" aria-hidden="true">{}</svg>').format(Markup("").join(texts))


def _row(row: Row, lines: Markup, begin_ms: int, last_ms: int, span_ms: int) -> Markup:
    bars, course = [], []
    for bar in row.bars:
        left = _at(bar.begin_ms, begin_ms, span_ms)
        right = _at(bar.end_ms if bar.end_ms is not None else last_ms, begin_ms, span_ms)
        width = max(_LEAST, right - left)
        course.append(_told(row, bar, last_ms))
        bars.append(
            Markup(
                '<rect class="{}" x="{:.2f}%" y="4" width="{:.2f}%" height="12" rx="2"><title>{}</title></rect>'
            ).format(_style(row, bar), min(left, 100 - width), width, course[-1])
        )
    return Markup(
        '<span class="label" title="{}">{}</span><svg class="course" role="img" aria-label="{}">{}{}</svg>'
    ).format(
        page_texts.shown(row.title, 200),
        page_texts.shown(row.label, 30),
        f"{page_texts.shown(row.title, 200)}: {'; '.join(course)}",
        lines,
        Markup("").join(bars),
    )


def _at(ms: int, begin_ms: int, span_ms: int) -> float:
    """A time's place, in percent of the width."""
    return 100 * min(1.0, max(0.0, (ms - begin_ms) / span_ms))


def _style(row: Row, bar: Bar) -> str:
    if bar.state in _WAITS:
        return "wait"
    if row.is_bad or bar.state in _BAD:
        return "bad"
    if row.end in _GOOD or bar.state in _GOOD:
        return "good"
    return "run" if bar.state == "RUNNING" else "idle"


def _told(row: Row, bar: Bar, last_ms: int) -> str:
    begun = datetime.fromtimestamp(bar.begin_ms / 1000, UTC)
    took = page_texts.duration(((bar.end_ms if bar.end_ms is not None else last_ms) - bar.begin_ms) / 1000)
    ended = f", then {row.end}" if row.end and bar is row.bars[-1] else ""
    if ended and row.failure:
        ended += f", {row.failure}"
    return f"{bar.state} for {took}{' so far' if bar.end_ms is None else ''}, from {begun:%H:%M:%S} UTC{ended}"
