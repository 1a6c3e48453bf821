"""What the report's page is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pipeline.journal.damage import Problem, lacks_rows
from pipeline.report.plots.plot_style import Rows


class PageData(NamedTuple):
    """The data of the page. `rows`: the first rows of each of the report's tables, by the table's name.

    Rows are in display order; an absent table appears empty. `damage`: the parts of the journal that cannot be read.
    `config`: the text of the run's configuration, if it is known. `is_live`: the page reloads itself. `totals`: numbers
    that the rows cannot give if a table is longer than what the page shows of it: containers, nodes,
    oversubscribed_nodes, unknown_transitions.
    """

    journal: str
    first_at: int | None
    last_at: int | None
    rows: Mapping[str, Rows]
    damage: Sequence[Problem] = ()
    compared_with: str | None = None
    config: str | None = None
    is_live: bool = False
    totals: Mapping[str, int] = MappingProxyType({})
    damage_before: Sequence[Problem] = ()
    """What could not be read of the journal of the earlier run."""

    @property
    def is_incomplete(self) -> bool:
        """Whether the figures lack rows of the run, or may lack some."""
        return lacks_rows(self.damage)

    def of(self, name: str) -> Rows:
        return self.rows.get(name, ())

    @property
    def span_s(self) -> float:
        """Length of the run in its own clock."""
        return 0.0 if self.first_at is None or self.last_at is None else (self.last_at - self.first_at) / 1e9
