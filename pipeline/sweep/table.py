"""The comparison table of a sweep, for the terminal and the page: its columns and the best rows of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

NOTHING: Final = "\N{EN DASH}"

Row = Mapping[str, Any]
"""A row of `pipeline.sweep.run_row`."""


class ComparedColumn(NamedTuple):
    title: str
    key: str
    """Key of the value in the row."""
    show: Callable[[Any], str]
    best: Callable[[Sequence[Any]], Any] | None = None
    """Picks the best of several values; None if the column has no best value."""
    is_bad: bool = False
    """Whether a value other than 0 is a problem."""


def columns(duration: Callable[[float], str]) -> tuple[ComparedColumn, ...]:
    """The columns after the settings; `duration` formats seconds."""
    return (
        ComparedColumn("Total nodes", "nodes", _count),
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
    """The columns that apply to these rows: no GPUs without GPUs, and no problem column without a problem."""
    return [
        column
        for column in columns(duration)
        if any(row[column.key] if column.is_bad else row[column.key] is not None for row in rows)
    ]


def cell_text(column: ComparedColumn, row: Row) -> str:
    """The formatted value, or a dash for None."""
    value = row[column.key]
    return NOTHING if value is None else column.show(value)


def best_numbers(column: ComparedColumn, rows: Sequence[Row]) -> frozenset[int]:
    """Numbers of the combinations with the best value; empty if all are equal, or the column has no best value."""
    values = {row["number"]: row[column.key] for row in rows if row[column.key] is not None}
    if column.best is None or len(set(values.values())) < 2:
        return frozenset()
    best = column.best(list(values.values()))
    return frozenset(number for number, value in values.items() if value == best)


def settings_text(row: Row) -> str:
    """The settings of a row on one line."""
    return ", ".join(f"{key}={value}" for key, value in row["settings"].items())


def percent(share: float) -> str:
    """A share of 1 in percent, with one decimal; less than one percent with two significant digits."""
    return f"{100 * share:.1f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"


def _count(number: int) -> str:
    return f"{number:,}"
