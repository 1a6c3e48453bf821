"""Numbers, shares, sizes, durations and times in the form people read.

Pages spell units out; what begins with `short_` fits a column of a terminal, in ASCII. A figure that is not known is
NOTHING on a page, and `-` in a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from dispatcher.util.units import NS_PER_S

NOTHING: Final = "\N{EN DASH}"

_BARS: Final = "▁▂▃▄▅▆▇█"
_UNITS_S: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_FRACTIONS_S: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"), (1e-9, "ns"))


def count(number: float | None) -> str:
    """A whole number with separators between thousands."""
    return NOTHING if number is None else f"{number:,.0f}"


def counted(number: int, noun: str, verb: Literal["", "is", "was"] = "") -> str:
    """`1 event`, `1,234 events`, `2 entities`, `1 event is`, `2 events are`."""
    if number == 1:
        return f"1 {noun} {verb}".rstrip()
    nouns = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {nouns} {_SEVERAL[verb]}".rstrip()


_SEVERAL: Final = {"": "", "is": "are", "was": "were"}


def short_count(number: float | None) -> str:
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


def decimal(number: float | None, digits: int = 1) -> str:
    return NOTHING if number is None else f"{number:,.{digits}f}"


def trimmed(number: float) -> str:
    """Up to two decimals, without trailing zeros."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def thousandths(milli: float | None) -> str:
    """Thousandths, of virtual cores or GPUs, as a decimal number."""
    return NOTHING if milli is None else trimmed(milli / 1000)


def percent(share: float | None) -> str:
    """A share of 1; below 10 % with a decimal."""
    if share is None:
        return NOTHING
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:,.{0 if share == 0 or abs(share) >= 0.0995 else 1}f} %"


def exact_percent(share: float | None) -> str:
    """A share of 1, to compare with others: one decimal, and below 1 % two significant digits."""
    if share is None:
        return NOTHING
    return f"{100 * share:.1f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"


def short_percent(share: float | None) -> str:
    """`12 %`."""
    return "-" if share is None else f"{share * 100:.0f} %"


def size(number_of_bytes: float | None) -> str:
    """`512 B`, `1.2 MB`; powers of 1,000."""
    if number_of_bytes is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number_of_bytes) < 999.5:
            return f"{number_of_bytes:.0f} {unit}" if unit == "B" else f"{number_of_bytes:.3g} {unit}"
        number_of_bytes /= 1000
    return f"{number_of_bytes:.3g} PB"


def memory(megabytes: float) -> str:
    """YARN's MB, which are MiB, in the largest unit, by YARN's names.

    >>> [memory(512), memory(2048), memory(3 * 1024**2)]
    ['512 MB', '2 GB', '3 TB']
    """
    for unit_mb, unit in ((1024**2, "TB"), (1024, "GB")):
        if abs(megabytes) >= unit_mb:
            return f"{trimmed(megabytes / unit_mb)} {unit}"
    return f"{megabytes:,.0f} MB"


def gibibytes(mebibytes: int | None) -> str:
    """MiB, which YARN calls MB, as GiB: capacities of nodes are whole numbers of these."""
    return NOTHING if mebibytes is None else f"{trimmed(mebibytes / 1024)} GiB"


def duration(seconds: float | None) -> str:
    """A duration in its two largest units from a minute up; below that, three digits of one unit.

    >>> [duration(0.0021), duration(7.4), duration(3725), duration(200000)]
    ['2.1 ms', '7.4 s', '1 h 2 min', '2 d 7 h']
    """
    if seconds is None:
        return NOTHING
    if seconds <= 0:
        return "0 s"
    if seconds >= 59.95:
        return _in_two_units(round(seconds))
    unit_s, unit = next((each for each in _FRACTIONS_S if seconds >= each[0] * 0.9995), _FRACTIONS_S[-1])
    return f"{seconds / unit_s:.3g} {unit}"


def short_duration(seconds: float | None) -> str:
    """`12 us`, `250 ms`, `61.2 s`, `12 m 3 s`, `3 h 12 m`, `4 d 2 h`."""
    if seconds is None:
        return "-"
    if seconds < 0.0005:
        return f"{max(0.0, seconds) * 1e6:.0f} us" if seconds > 0 else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else _in_two_units(round(seconds)).replace("min", "m")


def _in_two_units(whole_s: int) -> str:
    """The largest unit and the next smaller one; a unit with the number 0 is left out."""
    largest = next(place for place, (unit_s, _) in enumerate(_UNITS_S) if whole_s >= unit_s)
    parts = []
    for unit_s, unit in _UNITS_S[largest : largest + 2]:
        number, whole_s = divmod(whole_s, unit_s)
        if number:
            parts.append(f"{number:,} {unit}")
    return " ".join(parts)


def plain_seconds(seconds: float) -> str:
    """`0.0123 s`, `73.2 s`, `1234 s`: always in seconds, so that lines of a log compare."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def plain_milliseconds(duration_ns: int | None) -> str:
    """`0.012 ms`: always in milliseconds, so that the rows of a column compare."""
    return "-" if duration_ns is None else f"{duration_ns / 1e6:.3f} ms"


def moment(at: int | None) -> str:
    """Unix ns as date and time in UTC."""
    if at is None:
        return NOTHING
    return f"{datetime.fromtimestamp(at // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"


def local_now() -> time.struct_time:
    return time.localtime()


def clock_time(unix_ms: float) -> str:
    """Local time: `12:34:56` today, `07-01 12:34` this year, `2024-07-01` before."""
    try:
        at, now = time.localtime(unix_ms / 1000), local_now()
        is_today, is_this_year = at[:3] == now[:3], at[0] == now[0]
        return time.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M" if is_this_year else "%Y-%m-%d", at)
    except (OverflowError, ValueError, OSError):
        return f"@{unix_ms / 1000:.0f}"


def listed(names: Sequence[str], most: int) -> str:
    """`a, b`; of more than `most` names, the first ones: `a, b, and 3 more`."""
    more = len(names) - most
    return ", ".join([*names[:most], *([f"and {more} more"] if more > 0 else [])])


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
