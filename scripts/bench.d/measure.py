"""The measuring method: rows of a table, run round by round and reported as medians.

A round runs every row once, so that a slow moment of the machine affects all rows alike.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Figures = dict[str, float]
"""Medians by `table.row`; rates also have `table.row-highest`, and `table.row-share` of the row that a row names."""


@dataclass(frozen=True)
class Settings:
    repeats: int = 7
    scale: float = 1.0
    """Factor on all counts: below 1 for a quick look while developing."""
    endurance_events: int = 100_000_000
    containers: int = 10_000_000
    """Of the long replay."""
    before: str | None = None
    """A revision of the repository to compare with."""

    def count(self, count: int) -> int:
        """`count` scaled, even and at least 20."""
        return max(20, int(count * self.scale) // 4 * 4)


class Part(Protocol):
    """One subject of the benchmark. Its rounds alternate with the rounds of the other chosen parts."""

    def warm_up(self) -> None: ...

    def round(self) -> None: ...

    def report(self) -> Figures:
        """Print the tables; returns their figures, for the targets."""


class Spread(NamedTuple):
    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Row:
    """Something that runs `count` times; `run(count)` returns the seconds it took."""

    key: str
    name: str
    count: int
    run: Callable[[int], float]
    runs_per_round: int = 1
    """More than one if the results vary widely."""
    per: str = ""
    """The key of the row of the same table that this one is a share of, round by round; empty: of none."""
    rates: list[float] = field(default_factory=list)

    def measure(self) -> None:
        for _ in range(self.runs_per_round):
            gc.collect()  # outside the measured time: a row must not pay for another's garbage
            self.rates.append(self.count / self.run(self.count))

    def warm_up(self) -> None:
        self.run(max(4, self.count // 20 // 4 * 4))


@dataclass
class RateTable:
    """Rates per second; the first row is ours, and the last column is its ratio to each row."""

    key: str
    title: str
    rows: list[Row]

    def report(self) -> Figures:
        spreads = {row.name: Spread.of(row.rates) for row in self.rows}
        shares = self._shares()
        columns = [f"{shares[row.key]:.2f} x" if row.key in shares else "" for row in self.rows]
        print_table(self.title, spreads, extra={"of the bare": columns} if shares else {})
        medians = {f"{self.key}.{row.key}": spreads[row.name].median for row in self.rows}
        medians |= {f"{self.key}.{key}-share": share for key, share in shares.items()}
        return medians | {f"{self.key}.{row.key}-highest": spreads[row.name].highest for row in self.rows}

    def _shares(self) -> Figures:
        """Medians over the rounds of each row's share of the row that it names, by key."""
        rates = {row.key: row.rates for row in self.rows}
        return {
            row.key: statistics.median(own / other for own, other in zip(row.rates, rates[row.per], strict=True))
            for row in self.rows
            if row.per
        }


class RatePart:
    """A part that consists of tables of rates."""

    def __init__(self, *tables: RateTable) -> None:
        self._tables = tables

    def warm_up(self) -> None:
        for row in self._rows():
            row.warm_up()

    def round(self) -> None:
        for row in self._rows():
            row.measure()

    def report(self) -> Figures:
        return {key: value for table in self._tables for key, value in table.report().items()}

    def _rows(self) -> list[Row]:
        return [row for table in self._tables for row in table.rows]


def one_by_one(
    parts: Mapping[str, Callable[[Settings], Figures]], chosen: Sequence[str], settings: Settings
) -> Figures:
    """Measure the chosen parts, one after the other: each wants the machine for itself."""
    figures: Figures = {}
    for part in chosen:
        figures |= parts[part](settings)
    return figures


def print_table(
    title: str, spreads: Mapping[str, Spread], *, digits: int = 0, extra: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Print a spread per row and the ratio of the first row to each; `extra`: more columns by heading."""
    extra = extra or {}
    own = next(iter(spreads.values())).median
    print(f"\n{title}")
    more = "".join(f"{heading:>12}" for heading in extra)
    print(f"{'':46} {'median':>13} {'lowest':>13} {'highest':>13} {'first / this':>13}{more}")
    for place, (name, spread) in enumerate(spreads.items()):
        numbers = " ".join(f"{value:13,.{digits}f}" for value in spread)
        ratio = f"{own / spread.median:11.2f} x" if spread.median else f"{'-':>13}"
        print(f"{name:46} {numbers} {ratio}" + "".join(f"{column[place]:>12}" for column in extra.values()))
