"""Reads a journal the way jobs do: in parts, each on its own, skipping parts that cannot hold wanted rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatcher.journal import TABLES
from dispatcher.journal.conditions import Conditions
from pipeline.journal import Problem, read_batches
from pipeline.journal.arrow import arrow_schema
from pipeline.journal.damage import all_problems, in_order, total_lost
from pipeline.journal.scan import JournalPart, divide, plan, scan, scan_together
from pipeline.journal.whole import look_at_whole

from ...kit.segment_files import Table, summarize

Parts = Sequence[JournalPart]
OnDamage = Callable[[Problem], None]
Closed = Path | Sequence[Path]
"""A journal, or some of its segments, which may have been removed."""


def problems(journal: Path, *, as_reported: bool = False) -> list[Problem]:
    """All damage that a look at the whole journal finds. `as_reported`: in the order of a report."""
    found = list(all_problems(look_at_whole(journal)))
    return in_order(found) if as_reported else found


def lost_in_all(problems: Sequence[Problem]) -> str:
    return total_lost(problems)


def batches_where(journal: Path, table: Table, *, on_damage: OnDamage | None = None, **conditions: Any) -> Any:
    """The batches that match the conditions, which are `ranges` and `values` by column."""
    return read_batches(journal, table, conditions=Conditions(**conditions), on_damage=on_damage)


def planned(closed: Closed, table: Table, *, sized: Any = None, **conditions: Any) -> list[list[JournalPart]]:
    """The tasks that read a table. `sized`: how many bytes a task reads."""
    sizes = {} if sized is None else {"task_bytes": sized}
    return plan(_summarized(closed), table, Conditions(**conditions), **sizes)


def divided(closed: Closed, tasks: int) -> list[list[JournalPart]]:
    return divide(_summarized(closed), tasks)


def _summarized(closed: Closed) -> Any:
    return look_at_whole(closed).summarized if isinstance(closed, Path) else summarize(list(closed))


def numbers(parts: Parts) -> list[int]:
    """The segments to which the parts belong."""
    return [int(Path(part.segment).stem[-8:]) for part in parts]


def batches_of(parts: Parts, table: Table, on_damage: OnDamage) -> Iterator[pa.RecordBatch]:
    return scan(parts, table, arrow_schema(table), Conditions(), on_damage)


def pairs_of(parts: Parts, on_damage: OnDamage, *, coded: bool = False, **options: Any) -> Iterator[Any]:
    """Batches of both tables, read in one pass."""
    wanted = [(table, arrow_schema(table, coded=coded)) for table in TABLES]
    return scan_together(parts, wanted, on_damage, **options)
