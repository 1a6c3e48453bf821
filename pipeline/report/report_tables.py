"""Makes a report's tables from digests, in any process that can read the digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from pipeline.report.digests.digest import add_ends, add_parts, engine
from pipeline.report.digests.run import Run
from pipeline.report.digests.statements import AT_ONCE
from pipeline.report.digests.transition_digest import Ends
from pipeline.report.tables.registry import TABLES
from pipeline.report.tables.sql import add_declared
from pipeline.report.tables.writing import OF_NODES, SUMMARIES, write_tables

SHARES: Final = 2
"""Into how many shares of about equal work the tables of a large journal are divided."""
_OF_ENTITIES = ("kept_event", "move", "stretch")


@dataclass(frozen=True, slots=True)
class Finish:
    """Writes the tables of the digests in `parts`, in order of seq, to new folders below `folder`. Picklable.

    `declared`: rows of machine, from_state, event_type, to_state. `before`: the folder with the tables of an earlier
    run, to be compared with.
    """

    parts: Sequence[Path]
    folder: Path
    declared: Sequence[tuple[str, ...]]
    before: Path | None = None

    def run(self) -> None:
        self._write([table.name for table in TABLES], summaries=True)

    def run_share(self, number: int) -> None:
        """Write one of `SHARES` shares, which several processes may do at the same time. `run_rest` follows."""
        is_of_nodes = number == 0
        names = [one.name for one in TABLES if one.name not in SUMMARIES and (one.name in OF_NODES) == is_of_nodes]
        self._write(names, threads=max(1, (os.cpu_count() or 1) // SHARES))

    def run_rest(self) -> None:
        """Write the tables that are made from those of all shares."""
        self._write([], summaries=True, given=[one.name for one in TABLES if one.name not in SUMMARIES])

    def _write(
        self, names: list[str], *, summaries: bool = False, given: Sequence[str] = (), threads: int | None = None
    ) -> None:
        if summaries:
            names = list(dict.fromkeys([*names, *SUMMARIES[: 1 if self.before is None else None]]))
        self.folder.mkdir(parents=True, exist_ok=True)
        with engine(self.folder, threads) as database:
            add_parts(database, self.parts)
            add_ends(database, Ends.of(self.declared))
            add_declared(database, self.declared)
            at_once = AT_ONCE if threads is None else min(AT_ONCE, threads)
            run = Run.of(database)
            write_tables(database, run, self.folder, names, given=given, before=self.before, at_once=at_once)


def rows_of_entities(parts: Sequence[Path]) -> int:
    """Number of rows of the kinds that grow with the entities of a run, from the files' footers."""
    files = (file for part in parts for kind in _OF_ENTITIES for file in (part / kind).glob("*.parquet"))
    return sum(pq.read_metadata(file).num_rows for file in files)
