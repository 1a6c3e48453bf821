"""Tables of resource use as a share of capacity: by node and by queue, over time."""

from __future__ import annotations

from pipeline.report.digests.run import ReportRun
from pipeline.report.tables.containers import WHOLE_GPU_MILLI, changes_of_use
from pipeline.report.tables.sql import bucket_of, starts_at

_TAKEN = {"memory_mb": "memory_share", "vcores_milli": "vcores_share", "gpu_milli": "gpu_share"}
_DECIMALS = 9
_CAPACITIES = f"""
    memory_mb AS memory_mb_capacity, vcores_milli AS vcores_milli_capacity,
    gpus * {WHOLE_GPU_MILLI} AS gpu_milli_capacity
"""


def node_utilisation(run: ReportRun) -> str:
    """One row per node and interval: the share of its capacity in use, weighted by time.

    From containers and node_capacity. The node is null for the whole cluster. Each node that registered or held a
    container has a row for every interval; a share is null if the capacity is 0 or unknown.
    """
    # A node of unknown capacity counts neither as capacity nor as use.
    whole = ", ".join(
        f"sum({name}) FILTER ({name}_capacity IS NOT NULL) AS {name}, sum({name}_capacity) AS {name}_capacity"
        for name in _TAKEN
    )
    return f"""
        WITH taken AS ({_taken("SELECT * RENAME (node AS scope) FROM containers WHERE node IS NOT NULL", run)}),
        scopes AS (SELECT node AS scope FROM node_capacity UNION SELECT scope FROM taken),
        each AS (
            SELECT * FROM ({_over_time(run)}) LEFT JOIN (SELECT node AS scope, {_CAPACITIES} FROM node_capacity)
                USING (scope)
        )
        SELECT scope AS node, {_shares(run)}
        FROM (FROM each UNION ALL BY NAME SELECT NULL AS scope, bucket, {whole} FROM each GROUP BY bucket)
    """


def queue_utilisation(run: ReportRun) -> str:
    """One row per queue and interval: its containers' share of the cluster, weighted by time.

    From containers, applications and node_capacity. Every queue with an application has a row for every interval.
    """
    totals = ", ".join(f"sum({name}_capacity) AS {name}_capacity" for name in _TAKEN)
    of_queues = """
        SELECT containers.*, coalesce(queue, '') AS scope
        FROM containers LEFT JOIN (SELECT id AS application, queue FROM applications) USING (application)
    """
    return f"""
        WITH taken AS ({_taken(of_queues, run)}),
        scopes AS (SELECT coalesce(queue, '') AS scope FROM applications UNION SELECT scope FROM taken),
        each AS (
            FROM ({_over_time(run)}), (SELECT {totals} FROM (SELECT {_CAPACITIES} FROM node_capacity))
        )
        SELECT nullif(scope, '') AS queue, {_shares(run)} FROM each
    """


def _shares(run: ReportRun) -> str:
    # Rounding errors can make a sum slightly negative.
    shares = ", ".join(
        f"CASE WHEN {name} IS NOT NULL AND {name}_capacity <> 0 "
        f"THEN greatest(0, round({name} / {name}_capacity, {_DECIMALS})) END AS {share}"
        for name, share in _TAKEN.items()
    )
    return f"bucket, {starts_at(run.times)} AS starts_at, {shares}"


def _taken(intervals: str, run: ReportRun) -> str:
    """SQL: per scope and interval in which a container started or ended: scope, bucket, and two sums of each amount.

    NAME_level: the change of use from the interval's start to its end; NAME_part: that change's contribution to the
    interval's mean.
    """
    times = run.times
    left = f'(({starts_at(times)} + {times.width_ns} - "at") / {times.width_ns})'
    sums = ", ".join(
        f"sum(sign * {name}) AS {name}_level, sum(sign * {name} * {left}) AS {name}_part" for name in _TAKEN
    )
    amounts = f"""
        SELECT * REPLACE (coalesce(memory_mb, 0) AS memory_mb, coalesce(vcores_milli, 0) AS vcores_milli,
            coalesce(gpus * gpu_milli, 0) AS gpu_milli) FROM ({intervals})
    """
    names = ", ".join(["scope", *_TAKEN])
    return f"""
        SELECT scope, bucket, {sums}
        FROM (SELECT *, {bucket_of(times, '"at"')} AS bucket FROM ({changes_of_use(amounts, names)}))
        GROUP BY scope, bucket
    """


def _over_time(run: ReportRun) -> str:
    """SQL: one row per scope and interval, without gaps: the mean use of each amount; from scopes and taken."""
    means = ", ".join(
        f"coalesce(sum({name}_level) OVER before, 0) + coalesce({name}_part, 0) AS {name}" for name in _TAKEN
    )
    return f"""
        SELECT scope, bucket, {means}
        FROM (SELECT scope, unnest(range({run.times.number}))::INTEGER AS bucket FROM scopes)
        LEFT JOIN taken USING (scope, bucket)
        WINDOW before AS (PARTITION BY scope ORDER BY bucket ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    """
