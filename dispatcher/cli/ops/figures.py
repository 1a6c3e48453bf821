"""Numbers in the form people read, to fit the columns of a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(number: float | None) -> str:
    """`0`, `0.4`, `1,234`, `99,999`, `123k`, `4.6M`: at most seven characters."""
    if number is None:
        return "-"
    if 0 < abs(number) < 9.95 and number != int(number):
        return f"{number:.1f}"
    if abs(number) < 99_999.5:
        return f"{number:,.0f}"
    for unit in "kMGT":
        number /= 1000
        if abs(number) < 9.95:
            return f"{number:.1f}{unit}"
        if abs(number) < 999.5:
            return f"{number:.0f}{unit}"
    return f"{number:.1e}"


def duration(seconds: float | None) -> str:
    """`12 us`, `250 ms`, `61.2 s`, `12 m 3 s`, `3 h 12 m`, `4 d 2 h`."""
    if seconds is None:
        return "-"
    if seconds < 0.0005:
        return f"{max(0.0, seconds) * 1e6:.0f} us" if seconds > 0 else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, smaller in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "m"), (_MINUTE, "m", 1, "s")):
        if whole >= unit:
            return f"{count(whole // unit)} {name} {whole % unit // below} {smaller}"
    return f"{whole} s"


def size(number_of_bytes: float | None) -> str:
    """`512 B`, `1.2 MB`; powers of 1,000."""
    if number_of_bytes is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number_of_bytes) < 999.5:
            return f"{number_of_bytes:.0f} {unit}" if unit == "B" else f"{number_of_bytes:.3g} {unit}"
        number_of_bytes /= 1000
    return f"{number_of_bytes:.3g} PB"


def share(part: float | None) -> str:
    """`12 %`."""
    return "-" if part is None else f"{part * 100:.0f} %"


def listed(names: Sequence[str], most: int) -> str:
    """`a, b`; of more than `most` names, the first ones: `a, b, and 3 more`."""
    more = len(names) - most
    return ", ".join([*names[:most], *([f"and {more} more"] if more > 0 else [])])


def local_now() -> time.struct_time:
    return time.localtime()


def clock_time(unix_ms: float) -> str:
    """Local time: `12:34:56` today, `07-01 12:34` this year, `2024-07-01` before."""
    try:
        moment, now = time.localtime(unix_ms / 1000), local_now()
        is_today, is_this_year = moment[:3] == now[:3], moment[0] == now[0]
        return time.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M" if is_this_year else "%Y-%m-%d", moment)
    except (OverflowError, ValueError, OSError):
        return f"@{unix_ms / 1000:.0f}"


def sparkline(values: Sequence[float | None], width: int, total: int | None = None) -> str:
    """The values as bars from 0 to their maximum, oldest first; None is a space.

    With more values than columns, each column shows the highest of several. `total` counts all values so far, including
    those no longer in `values`. With it, only the last column changes from one call to the next.
    """
    if width <= 0 or not values:
        return " " * max(0, width)
    per_column = -(-len(values) // width)
    newest = (len(values) if total is None else total) % per_column or per_column
    columns: list[float | None] = []
    end = len(values)
    begin = max(0, end - newest)
    while end > 0 and len(columns) < width:
        known = [value for value in values[begin:end] if value is not None]
        columns.append(max(known) if known else None)
        begin, end = max(0, begin - per_column), begin
    most = max((value for value in columns if value is not None), default=0.0)
    return "".join(_bar(value, most) for value in reversed(columns)).rjust(width)


def _bar(value: float | None, most: float) -> str:
    if value is None:
        return " "
    if value <= 0 or most <= 0:
        return _BARS[0]
    return _BARS[min(len(_BARS) - 1, max(1, round(value / most * (len(_BARS) - 1))))]
