"""Formats numbers, times and quantities for the report."""

from __future__ import annotations

from datetime import UTC, datetime

from dispatcher.util.units import NS_PER_S

NOTHING = "\N{EN DASH}"
_UNITS_S = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_FRACTIONS_S = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def count(number: int | None) -> str:
    """A whole number with separators between thousands."""
    return NOTHING if number is None else f"{number:,}"


def decimal(number: float | None, digits: int = 1) -> str:
    return NOTHING if number is None else f"{number:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share of 1 in percent; below 10 % with a decimal."""
    return NOTHING if share is None else f"{100 * share:,.{0 if share == 0 or abs(share) >= 0.1 else 1}f} %"


def duration(seconds: float | None) -> str:
    """A duration in its two largest units from a minute up; below that, three digits of one unit."""
    if seconds is None:
        return NOTHING
    if seconds == 0:
        return "0 s"
    if seconds < 59.95:
        size, unit = next((pair for pair in _FRACTIONS_S if seconds >= pair[0] * 0.9995), _FRACTIONS_S[-1])
        return f"{seconds / size:.3g} {unit}"
    whole = round(seconds)
    larger = next(position for position, (size, _) in enumerate(_UNITS_S) if whole >= size)
    parts = []
    for size, unit in _UNITS_S[larger : larger + 2]:
        number, whole = divmod(whole, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts)


def moment(at: int | None) -> str:
    """Unix ns as date and time in UTC."""
    if at is None:
        return NOTHING
    return f"{datetime.fromtimestamp(at // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"


def memory(mebibytes: int | None) -> str:
    """MiB, which YARN calls MB, as GiB: capacities of nodes are whole numbers of these."""
    return NOTHING if mebibytes is None else f"{_trimmed(mebibytes / 1024)} GiB"


def thousandths(milli: int | None) -> str:
    """Thousandths of virtual cores or GPUs as a decimal number."""
    return NOTHING if milli is None else _trimmed(milli / 1000)


def _trimmed(number: float) -> str:
    return f"{number:,.2f}".rstrip("0").rstrip(".")
