"""A frame of `top`: lines as wide as the terminal, computed from the state alone.

All text from the daemon passes through `_plain`, which escapes it and cuts it to its columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dispatcher.cli.ops.look import frame_text, handler_frames, reason_text
from dispatcher.cli.ops.top.state import HISTORY_S, History, Look, Sort, TopState
from dispatcher.ops.dispatchers import DispatcherNumbers, EventTypeNumbers, Failure, Queued, QueuedEntity
from dispatcher.ops.entities import EntityDetails
from dispatcher.ops.stacks import RunningHandler, StackLine
from dispatcher.util.figures import clock_time, short_count, short_duration, short_percent, size, sparkline
from dispatcher.util.terminal import one_line

KEYS: Final = "^C quit  ? help  q r t f sort  / filter  e entity  ↑↓ dispatcher  p pause"
"""A narrow terminal cuts its end."""
LEAST_WIDTH: Final = 60
LEAST_HEIGHT: Final = 16
_BAND: Final = "bold white on #30405c"
_SORTED: Final = "bold black on #8fb8ff"
_BAD: Final = "bold #ff6b6b"
_GOOD: Final = "#7bd88f"
_DIM: Final = "#8a8f98"
_SPARKS: Final = tuple(width for width in (6, 10, 12, 15, 20, 30, 60) if HISTORY_S % width == 0)
"""Widths of a sparkline in which all columns cover equally many seconds."""
_SHOWN_RUN_S: Final = 1.0
"""Shorter runs are not shown in their dispatcher's line."""
_NOT_ASKED: Final = "not asked yet"
"""In place of a newly selected dispatcher's details, until the next look: there is none in a pause."""


def frame_of(state: TopState, width: int, height: int, now_s: float) -> list[Text]:
    """The lines of a frame, `height` of them, each of `width` columns."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        lines = [_line(f"enlarge to {LEAST_WIDTH} x {LEAST_HEIGHT} (now {width} x {height})", width, _BAD)]
    elif state.look is None:
        lines = [_head(state, width, now_s)]
    else:
        body = _body(state, state.look, width, height - 2)
        if state.lost is not None:
            body = [Text(line.plain, _DIM, no_wrap=True, end="") for line in body]  # how it was
        lines = [_head(state, width, now_s), *body]
    lines = [*lines[: height - 1], *(_line("", width) for _ in range(height - 1 - len(lines)))]
    return [*lines, _line(f" {KEYS}", width, _DIM)]


def _body(state: TopState, look: Look, width: int, height: int) -> list[Text]:
    lines = _dispatchers(state, look, width, max(2, height // 6))
    lines += _problems(look, width, max(1, height // 10))
    left = height - len(lines)
    shown = state.types()
    failures, running = max(3, left // 4), max(5, left * 3 // 10)
    types = min(left - failures - running, max(3, len(shown) + 1))
    lines += _filled(_types(state, look, shown, width, types), width, types)
    left -= types
    if state.wish.entity is not None:
        return lines + _entity(state.wish.entity, look.entity, width, left)
    # Spare lines go to the stack of a long run, else to the failures: with short runs the frame would jump.
    is_long = look.running is not None and look.running.running_s >= _SHOWN_RUN_S
    wanted = len(_innermost(look.running, left)) + 1 if is_long and look.running else 0
    running = max(running, min(wanted, left - failures))
    lines += _filled(_running(look, width, running), width, running)
    return lines + _failures(look, width, left - running)


def _filled(lines: list[Text], width: int, height: int) -> list[Text]:
    return lines[:height] + [_line("", width) for _ in range(height - len(lines))]


# -- the process -------------------------------------------------------------------------------------------------------


def _head(state: TopState, width: int, now_s: float) -> Text:
    look = state.look
    if look is None:
        return _line(" waiting for the daemon", width, _BAND)
    process = look.summary.process
    if state.lost is not None:
        waited = round(max(0.0, now_s - state.lost.since_s))
        shown = f"{waited} s" if waited < 100 else short_duration(waited)
        return _line(f" reconnecting for {shown}: {state.lost.reason}", width, "bold white on #a02c2c")
    parts = [f" {process.name}", f"pid {process.pid}", f"up {short_duration(process.uptime_s)}"]
    parts += [f"cpu {short_percent(state.cpu_share)}"] if state.cpu_share is not None else []
    parts += [size(process.rss_bytes)] if process.rss_bytes is not None else []
    parts += [f"{short_count(process.threads)} threads"] if process.threads is not None else []
    parts += [f"load {process.loadavg[0]:.2f}"] if process.loadavg else []
    parts += [f"restarted {state.restarts}x"] if state.restarts else []
    verdict = ", ".join(map(reason_text, look.summary.reasons)) or look.summary.verdict
    style = "bold white on #a02c2c" if look.summary.reasons else "bold black on #7bd88f"
    if look.summary.is_degraded:
        style = "bold black on #e8c547"
    if state.is_paused:
        verdict, style = f"PAUSED, was {verdict}", "bold black on #e8c547"
    verdict = f" {one_line(verdict)} "
    verdict = _plain(verdict, min(cell_len(verdict), width // 2))
    while cell_len("  ".join(parts)) > width - cell_len(verdict) and len(parts) > 3:
        parts.pop()
    line = _line("  ".join(parts), width - cell_len(verdict), _BAND)
    return line.append(verdict, style)


# -- dispatchers -------------------------------------------------------------------------------------------------------


def _dispatchers(state: TopState, look: Look, width: int, most: int) -> list[Text]:
    spark = max((each for each in _SPARKS if each <= 12 + (width - 80) // 3), default=_SPARKS[0])
    name = width - 64 - 2 * (spark - 12)
    everybody = look.summary.dispatchers
    at = next((number for number, each in enumerate(everybody) if each.name == look.dispatcher), 0)
    first = max(0, min(at - most // 2, len(everybody) - most))
    shown = everybody[first : first + most]
    title = "DISPATCHER" if len(shown) == len(everybody) else f"{at + 1} of {len(everybody)}"
    header = _TextLine(width, _BAND)
    header.text(f"  {title}", name + 2).text("STATE", 12).number("QUEUED", 7).text("last 60 s", spark)
    header.number("RATE/s", 7).text("last 60 s", spark).number("FAILED", 6)
    lines = [header.done()]
    for each in shown:
        history = state.histories.get(each.name, History())
        is_chosen = each.name == look.dispatcher and len(everybody) > 1
        word, style = _state_of(each, look.summary.is_stuck(each.name))
        line = _TextLine(width, "bold" if is_chosen else "")
        line.text(f"{'>' if is_chosen else ' '} {_both_ends(each.name, name)}", name + 2).text(word, 12, style)
        line.number(short_count(each.queue.size), 7, _queue_style(each))
        line.text(sparkline(list(history.queue), spark, history.total), spark, "#e8c547")
        line.number(short_count(each.rate.s1), 7).text(
            sparkline(list(history.rate), spark, history.total), spark, "#6bb5ff"
        )
        lines.append(line.number(short_count(each.failed), 6, _BAD if each.failed else "").done())
    chosen = next((each for each in shown if each.name == look.dispatcher), None)
    if chosen is None:
        lines.append(_line("  no dispatcher", width, _DIM))
    elif chosen.failure is not None:
        lines.append(_line(f"  {chosen.name} failed: {chosen.failure}", width, _BAD))
    else:
        lines.append(_line(f"  {', '.join(_details(chosen, look.queued))}", width, _DIM))
    return lines


def _both_ends(name: str, most: int) -> str:
    """Both ends of a long name: a daemon's dispatchers may differ in either."""
    shown = one_line(name)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[len(shown) - (most - most // 2 - 1) :]}"


def _details(numbers: DispatcherNumbers, queued: Queued[QueuedEntity] | None) -> Iterator[str]:
    """Figures of the selected dispatcher that its line has no room for."""
    queue, journal = numbers.queue, numbers.journal
    if queued is not None and queued.items:
        about = "queued, about:" if queued.approximate else "queued:"
        yield f"{about} {', '.join(f'{each.entity} {short_count(each.queued)}' for each in queued.items)}"
    if journal is not None:
        yield f"journal {'FAILED' if journal.failed else 'sound'} with {short_count(journal.outstanding)} outstanding"
    if numbers.dead_letters is not None and numbers.dead_letters.count:
        yield numbers.dead_letters.what
    if numbers.retrying:
        yield f"{short_count(numbers.retrying)} retrying"
    if numbers.scheduled.count:
        yield f"{short_count(numbers.scheduled.count)} scheduled"
    if numbers.idle_share_10s is not None:
        yield f"busy {short_percent(1 - numbers.idle_share_10s)}"
    if queue.oldest_wait_s is not None:
        yield f"oldest waiting {short_duration(queue.oldest_wait_s)}"
    if queue.capacity is not None:
        yield f"capacity {short_count(queue.capacity)} ({queue.policy})"
    for name, by_reason in (("rejected", numbers.rejected), ("discarded", numbers.discarded)):
        for reason, number in by_reason.items():
            if number:
                yield f"{short_count(number)} {name} ({reason})"
    yield f"{short_count(numbers.handled)} handled"


def _state_of(numbers: DispatcherNumbers, is_stuck: bool) -> tuple[str, str]:
    if numbers.failure is not None:
        return "FAILED", _BAD
    running = numbers.running
    if running is not None and (is_stuck or running.running_s >= _SHOWN_RUN_S):
        return f"runs {short_duration(running.running_s)}", _BAD if is_stuck else "#e8c547"
    return numbers.state, _GOOD if numbers.state == "STARTED" else _DIM


def _queue_style(numbers: DispatcherNumbers) -> str:
    capacity = numbers.queue.capacity
    return _BAD if capacity is not None and numbers.queue.size >= 0.9 * capacity else ""


# -- problems ----------------------------------------------------------------------------------------------------------


def _problems(look: Look, width: int, most: int) -> list[Text]:
    """Two lines for each problem: which dispatcher and type, and since when; what waits."""
    lines: list[Text] = []
    grave = {each.reason for each in look.summary.reasons}
    for number, each in enumerate(look.problems[:most], 1):
        place = f"{number} of {len(look.problems)} " if len(look.problems) > most else ""
        where = " ".join(filter(None, (each.dispatcher or each.service, each.name)))
        since = f" since {clock_time(each.since)}" if each.since is not None else ""
        detail = f": {each.detail}" if each.detail else ""
        style = _BAD if each.problem in grave else "#e8c547"
        lines.append(_line(f" {place}{each.problem}: {where}{since}{detail}", width, style))
        lines.append(_line(f"   waits: {each.waits or 'nothing'}", width))
    return lines


# -- types -------------------------------------------------------------------------------------------------------------


def _types(state: TopState, look: Look, shown: Sequence[EventTypeNumbers], width: int, height: int) -> list[Text]:
    is_wide = width >= 100
    name = width - (64 if is_wide else 49)
    known = f"{len(shown)}/{len(look.types)}" if state.filter else f"{len(shown)}" if look.has_details else "-"
    chosen = f" {state.filter!r}" if state.filter else ""
    header = _TextLine(width, _BAND)
    header.text(f" TYPES{chosen}: {known}", name)
    for title, columns, sort in (
        ("QUEUED", 7, Sort.QUEUED),
        ("RATE/s", 7, Sort.RATE),
        ("TIME", 6, Sort.TIME),
        ("MEAN", 8, None),
        ("WAIT", 8, None),
        *((("SLOW", 6, None),) if is_wide else ()),
        ("FAILED", 7, Sort.FAILED),
        *((("FAIL/s", 7, None),) if is_wide else ()),
    ):
        header.number(title, columns, _SORTED if sort is state.wish.sort else "")
    lines = [header.done()]
    for each in shown[: max(0, height - 1)]:
        line = _TextLine(width)
        line.text(f" {type_text(each, name - 1)}", name).number(short_count(each.queued), 7).number(
            short_count(each.rate_10s), 7
        )
        line.number(short_percent(each.handling_share_10s), 6).number(short_duration(each.handling_mean_s), 8)
        line.number(short_duration(each.queue_mean_s), 8)
        if is_wide:
            line.number(short_count(each.slow), 6, _BAD if each.slow else "")
        line.number(short_count(each.failed), 7, _BAD if each.failed else "")
        if is_wide:
            line.number(short_count(each.failed_rate_10s), 7, _BAD if each.failed_rate_10s else "")
        lines.append(line.done())
    if not shown:
        none = "no event type matches the filter" if state.filter else "none yet"
        lines.append(_line(f"  {none if look.has_details else _NOT_ASKED}", width, _DIM))
    return lines


def type_text(numbers: EventTypeNumbers, most: int) -> str:
    """The class and the type; the class is cut if both do not fit."""
    name = numbers.name
    if len(name) <= most or not numbers.event_class or not numbers.event_type:
        return name
    room = most - len(numbers.event_type) - 2
    return f"{numbers.event_class[:room]}….{numbers.event_type}" if room >= 3 else numbers.event_type


# -- what runs, what failed, an entity ---------------------------------------------------------------------------------


def _running(look: Look, width: int, height: int) -> list[Text]:
    running = look.running
    if running is None:
        what = "nothing" if look.has_details else _NOT_ASKED
        return [_line(f" RUNNING on {look.dispatcher}: {what}" if look.dispatcher else " RUNNING", width, _BAND)]
    is_stuck = look.summary.is_stuck(look.dispatcher)
    title = f" RUNNING for {short_duration(running.running_s)}: {running.what}"
    lines = [_line(title, width, "bold white on #a02c2c" if is_stuck else _BAND)]
    room = height - 1
    shown = _innermost(running, room)
    lines += [_line(f"   {frame_text(frame)}", width, _DIM if frame.internal else "") for frame in shown]
    return lines


def _innermost(running: RunningHandler, room: int) -> Sequence[StackLine]:
    """The innermost frames of the handler, or of the dispatcher if no handler runs."""
    frames = handler_frames(running.stack) or running.stack
    return frames[-room:] if room > 0 else []


def _failures(look: Look, width: int, height: int) -> list[Text]:
    chosen = next((each for each in look.summary.dispatchers if each.name == look.dispatcher), None)
    failed, rate = (chosen.failed, chosen.failure_rate.s10) if chosen is not None else (0, None)
    now = f", {short_count(rate)}/s" if rate else ""
    lines = [_line(f" LAST FAILURES, newest first: {failed:,} since start{now}", width, _BAND)]
    room = height - 1
    for number, each in enumerate(look.failures[:room]):
        lines.append(_failure(each, width))
        if number == 0:
            lines += _more_of(each, width, room - min(room, len(look.failures)))
    if not look.failures:
        lines.append(_line(f"  {'none' if look.has_details else _NOT_ASKED}", width, _DIM))
    return lines[:height]


def _failure(failure: Failure, width: int) -> Text:
    at = clock_time(failure.at)
    line = _line(f"  {at} {failure.what}: {failure.error}", width)
    line.stylize(_DIM, 0, 2 + len(at))
    return line


def _more_of(failure: Failure, width: int, room: int) -> list[Text]:
    """The newest failure's message, if its line was cut, and as many frames as there is room for."""
    if room <= 0:
        return []
    whole = f"  {clock_time(failure.at)} {failure.what}: {failure.error}"
    message = [_line(f"     {failure.message}", width)] if cell_len(one_line(whole)) > width else []
    frames = failure.frames[-(room - len(message)) :] if room > len(message) else []
    return message + [_line(f"     {' '.join(frame.split())}", width, _DIM) for frame in frames]


def _entity(wanted: str, answer: EntityDetails | str | None, width: int, height: int) -> list[Text]:
    if answer is None or isinstance(answer, str):
        return [
            _line(f" ENTITY {wanted} (Esc closes)", width, _BAND),
            _line(f"  {answer or _NOT_ASKED}", width, _DIM),
        ]
    machine = f" ({answer.machine})" if answer.machine else ""
    since = f" since {clock_time(answer.since)}" if answer.since is not None else ""
    lines = [_line(f" ENTITY {answer.id}{machine}: {answer.state or 'no state'}{since} (Esc closes)", width, _BAND)]
    if answer.data is not None:
        lines.append(_line(f"  {json.dumps(answer.data)}", width))
        height -= 1
    rows = answer.history.items
    for each in rows[: height - 2]:
        seq = f" #{each.seq}" if each.seq is not None else ""
        wrong = f": {each.error}" if each.error else ": invalid" if each.valid is False else ""
        lines.append(_line(f"  {clock_time(each.at)}{seq}  {each.what}{wrong}", width, _BAD if wrong else ""))
    if len(rows) > height - 2 or answer.history.next is not None:
        lines.append(_line("  ... earlier rows not shown", width, _DIM))
    elif not answer.complete:
        lines.append(_line("  ... older rows are no longer kept", width, _DIM))
    return lines


# -- lines -------------------------------------------------------------------------------------------------------------


@dataclass
class _TextLine:
    """Builds a line column by column, with one space between columns."""

    width: int
    style: str = ""

    def __post_init__(self) -> None:
        self._text = Text(style=self.style, no_wrap=True, end="")

    def text(self, text: str, columns: int, style: str = "") -> _TextLine:
        return self._add(_plain(text, columns), style)

    def number(self, text: str, columns: int, style: str = "") -> _TextLine:
        return self._add(_plain(text, columns).strip().rjust(columns), style)

    def _add(self, shown: str, style: str) -> _TextLine:
        if self._text.plain:
            self._text.append(" ")
        self._text.append(shown, style or None)
        return self

    def done(self) -> Text:
        self._text.append(" " * (self.width - self._text.cell_len))
        return self._text


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(_plain(text, width), style=style, no_wrap=True, end="")


def _plain(text: str, columns: int) -> str:
    """The text escaped, and cut or padded to `columns`."""
    shown = one_line(text)
    if cell_len(shown) > columns:
        return f"{set_cell_size(shown, columns - 1)}…" if columns > 0 else ""
    return set_cell_size(shown, columns)
