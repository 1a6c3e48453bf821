"""The comparison table of a sweep, for a terminal and for a page: what is shown of a row, and which rows are best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

NOTHING: Final = "\N{EN DASH}"

Row = Mapping[str, Any]
"""One of `pipeline.sweep.run_row`."""


class ComparedColumn(NamedTuple):
    """One column of the comparison."""

    title: str
    key: str
    """In the row."""
    show: Callable[[Any], str]
    best: Callable[[Sequence[Any]], Any] | None = None
    """Picks the best of several values; None: none is better than another."""
    is_bad: bool = False
    """A value other than 0 is."""


def columns(duration: Callable[[float], str]) -> tuple[ComparedColumn, ...]:
    """What is compared, after the settings; `duration` writes seconds."""
    return (
        ComparedColumn("Nodes in all", "nodes", _count),
        ComparedColumn("Mean wait", "wait_mean_s", duration, min),
        ComparedColumn("Median wait", "wait_p50_s", duration, min),
        ComparedColumn("95 % wait", "wait_p95_s", duration, min),
        ComparedColumn("Longest wait", "wait_max_s", duration, min),
        ComparedColumn("Never placed", "never_placed", _count, min),
        ComparedColumn("Makespan", "makespan_s", duration, min),
        ComparedColumn("Memory", "memory_used", percent, max),
        ComparedColumn("Cores", "vcores_used", percent, max),
        ComparedColumn("GPUs", "gpus_used", percent, max),
        ComparedColumn("Unfinished", "unfinished", _count, is_bad=True),
        ComparedColumn("Failed events", "failed_events", _count, is_bad=True),
    )


def shown_columns(rows: Sequence[Row], duration: Callable[[float], str]) -> list[ComparedColumn]:
    """Those of `columns` that say anything of these rows: GPUs where there are some, and problems likewise."""
    return [
        column
        for column in columns(duration)
        if any(row[column.key] if column.is_bad else row[column.key] is not None for row in rows)
    ]


def cell_text(column: ComparedColumn, row: Row) -> str:
    """A value, or a dash where there is none."""
    value = row[column.key]
    return NOTHING if value is None else column.show(value)


def best_numbers(column: ComparedColumn, rows: Sequence[Row]) -> frozenset[int]:
    """The numbers of the combinations that are best in this column; none if all are alike, or nothing is better."""
    values = {row["number"]: row[column.key] for row in rows if row[column.key] is not None}
    if column.best is None or len(set(values.values())) < 2:
        return frozenset()
    best = column.best(list(values.values()))
    return frozenset(number for number, value in values.items() if value == best)


def settings_text(row: Row) -> str:
    """The settings of a row on one line."""
    return ", ".join(f"{key}={value}" for key, value in row["settings"].items())


def percent(share: float) -> str:
    """A share of 1 in percent: with one decimal, and two digits of what is less than one percent."""
    return f"{100 * share:.1f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"


def _count(number: int) -> str:
    return f"{number:,}"
