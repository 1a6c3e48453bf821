"""Reads the rows that the report's page shows from the tables' Parquet files.

At most one batch of a table and the wanted rows are in memory. No Spark here: a job per table would take longer than
reading all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pipeline.spark.report.page.page_sections import APPLICATIONS_DRAWN, NODES_DRAWN
from pipeline.spark.report.page.page_views import ROWS_SHOWN
from pipeline.spark.report.plots.plot_style import Rows

_NODES_IN_HEAT_MAP = 40
_QUEUES_IN_HEAT_MAP = 20
_TYPES_OVER_TIME = 5
_MACHINES_DRAWN = 12
_MORE_THAN_ANY_HAS = 5000

_Order = Literal["ascending", "descending"]


class _Wanted(NamedTuple):
    """The first `limit` rows ordered by these keys, descending for a key with a minus sign; nulls last."""

    keys: Sequence[str]
    limit: int = ROWS_SHOWN + 1


_KIND = ("machine", "from_state", "event_type", "to_state")
_WANTED = {
    "run_totals": _Wanted(["events"], 1),
    "applications_by_final_state": _Wanted(["-applications", "final_state"], _MORE_THAN_ANY_HAS),
    "waiting_by_queue": _Wanted(["-applications", "queue"]),
    "waiting_by_user": _Wanted(["-applications", "queue", "user"]),
    "applications": _Wanted(["-never_placed", "-wait_s", "submitted_at", "id"]),
    "critical_paths": _Wanted(["-total_s", "application"]),
    "time_in_state": _Wanted(["machine", "state"], _MORE_THAN_ANY_HAS),
    "unknown_transitions": _Wanted(["-count", *_KIND]),
    "mined_graph": _Wanted(["-count", *_KIND], _MORE_THAN_ANY_HAS),
    "events_by_type": _Wanted(["-handling_total_ms", "event_class", "event_type"]),
    "slowest_handlers": _Wanted(["-handling_ms", "seq"]),
    "queue_depth": _Wanted(["bucket"], _MORE_THAN_ANY_HAS),
    "stuck_entities": _Wanted(["-over_s", "machine", "entity"]),
    "failures": _Wanted(["-count", "first_seq"]),
    "node_peaks": _Wanted(["-oversubscribed", "-fullness", "node"], NODES_DRAWN + 1),
    "comparison": _Wanted(["subject", "metric"], _MORE_THAN_ANY_HAS),
}


def rows_of_page(folder: Path) -> dict[str, Rows]:
    """For each of the report's tables in `folder`, the rows that are shown or drawn, in order."""
    rows: dict[str, Rows] = {name: _first(folder / name, wanted) for name, wanted in _WANTED.items()}
    machines = list(dict.fromkeys(row["machine"] for row in rows["mined_graph"]))[:_MACHINES_DRAWN]
    rows["mined_graph"] = [row for row in rows["mined_graph"] if row["machine"] in machines]
    longest = [row["application"] for row in rows["critical_paths"][:APPLICATIONS_DRAWN]]
    costliest = [row["event_type"] for row in rows["events_by_type"][:_TYPES_OVER_TIME]]
    nodes = _busiest(folder / "node_utilisation", "node", _NODES_IN_HEAT_MAP)
    queues = _busiest(folder / "queue_utilisation", "queue", _QUEUES_IN_HEAT_MAP)
    in_time = _Wanted(["bucket"], _MORE_THAN_ANY_HAS)
    cluster = pc.field("node").is_null()
    rows["application_timeline"] = _first(
        folder / "application_timeline",
        _Wanted(["from_at", "seq"], _MORE_THAN_ANY_HAS),
        _is_among("application", longest),
    )
    rows["event_times"] = _first(folder / "event_times", in_time, _is_among("event_type", costliest))
    rows["containers_over_time"] = _first(folder / "containers_over_time", in_time, cluster)
    # The cluster first, then the nodes, busiest first.
    of_nodes = _first(folder / "node_utilisation", in_time, _is_among("node", nodes))
    rows["node_utilisation"] = [
        *_first(folder / "node_utilisation", in_time, cluster),
        *sorted(of_nodes, key=lambda row: nodes.index(row["node"])),
    ]
    of_queues = _first(folder / "queue_utilisation", in_time, _is_among("queue", queues))
    rows["queue_utilisation"] = sorted(of_queues, key=lambda row: queues.index(row["queue"]))
    return rows


def _busiest(folder: Path, key: str, most: int) -> list[str]:
    """The names under `key` with the highest use of their most used resource, summed over time."""
    if not folder.is_dir():
        return []
    shares = ["memory_share", "vcores_share", "gpu_share"]
    used: dict[str, float] = {}
    for batch in ds.dataset(folder, format="parquet").to_batches(columns=[key, *shares]):
        use = pc.max_element_wise(*(batch.column(share) for share in shares))
        of_batch = pa.table({key: batch.column(key), "use": use}).group_by(key).aggregate([("use", "sum")])
        for row in of_batch.to_pylist():
            if row[key] is not None:
                used[row[key]] = used.get(row[key], 0.0) + (row["use_sum"] or 0.0)
    return sorted(used, key=lambda name: (-used[name], name))[:most]


def row_count(table: Path) -> int:
    """Number of rows of a Parquet table, from its files' footers."""
    return sum(pq.read_metadata(file).num_rows for file in table.glob("*.parquet"))


def total(table: Path, column: str) -> int:
    """The sum of a column of whole numbers or booleans."""
    if not table.is_dir():
        return 0
    batches = ds.dataset(table, format="parquet").to_batches(columns=[column])
    return sum(pc.sum(batch.column(0)).as_py() or 0 for batch in batches)


def _first(folder: Path, wanted: _Wanted, where: pc.Expression | None = None) -> Rows:
    if not folder.is_dir():
        return []
    keys = [_key(key) for key in wanted.keys]
    best: pa.Table | None = None
    for batch in ds.dataset(folder, format="parquet").to_batches(filter=where):
        if not batch.num_rows:
            continue
        more = pa.Table.from_batches([batch])
        derive = _DERIVED.get(folder.name)
        if derive is not None:
            more = derive(more)
        both = more if best is None else pa.concat_tables([best, more])
        order = pc.sort_indices(both, sort_keys=keys)
        best = both.take(order[: wanted.limit])
    return [] if best is None else best.to_pylist()


def _is_among(column: str, names: Sequence[str]) -> pc.Expression:
    # With an explicit type: Arrow infers null for an empty list, which cannot be compared with strings.
    return pc.field(column).isin(pa.array(names, pa.string()))


def _key(key: str) -> tuple[str, _Order]:
    return (key[1:], "descending") if key.startswith("-") else (key, "ascending")


def _with_fullness(peaks: pa.Table) -> pa.Table:
    """Add the share in use of each node's most used resource."""
    shares = [
        pc.divide(peaks[peak].cast(pa.float64()), pc.if_else(pc.greater(peaks[capacity], 0), peaks[capacity], None))
        for peak, capacity in (
            ("peak_memory_mb", "memory_mb"),
            ("peak_vcores_milli", "vcores_milli"),
            ("peak_gpu_milli", "gpu_milli"),
        )
    ]
    return peaks.append_column("fullness", pc.max_element_wise(*shares))


_DERIVED: dict[str, Callable[[pa.Table], Any]] = {
    "applications": lambda table: table.append_column(
        "never_placed", pc.and_(pc.is_null(table["first_container_at"]), pc.is_valid(table["submitted_at"]))
    ),
    "node_peaks": _with_fullness,
    # The time by which each stay exceeds the 99th percentile.
    "stuck_entities": lambda table: table.append_column(
        "over_s", pc.subtract(table["stay_s"], pc.coalesce(table["p99_s"], 0.0))
    ),
}
