"""Tables of a resource manager's containers: how they used their nodes over time.

A container occupies its node from its transition into ALLOCATED until its transition into an end state. Running sums
are ordered by `seq`: many changes share one nanosecond of virtual time, and ordered by time alone a container could
appear to start before the container that it replaces has ended.
"""

from __future__ import annotations

from pipeline.report.digests.buckets import TimeBuckets
from pipeline.report.digests.run import ReportRun
from pipeline.report.payloads import PAYLOADS, fields_of, is_event
from pipeline.report.tables.sql import among, bucket_of, starts_at

END_STATES = ("COMPLETED", "EXPIRED", "RELEASED", "KILLED")
WHOLE_GPU_MILLI = 1000
_BUCKETS = 200
_START = "RMContainerEventType", "START"
_REGISTRATION = "RMNodeEventType", "STARTED"
_AMOUNTS = ("containers", "memory_mb", "vcores_milli", "gpu_milli_total")


def first_event(event_class: str, event_type: str, columns: str = "") -> str:
    """SQL: one row per entity with the fields of its first event of this type, from kept_event; and `columns`."""
    names = ", ".join(f"fields.{name} AS {name}" for name in PAYLOADS[event_class, event_type])
    return f"""
        SELECT entity{columns}, {names}
        FROM (
            SELECT *, {fields_of(event_class, event_type)} AS fields
            FROM kept_event
            WHERE seq IN (SELECT min(seq) FROM kept_event WHERE {is_event(event_class, event_type)} GROUP BY entity)
                AND {is_event(event_class, event_type)}
        )
    """


def containers(run: ReportRun) -> str:
    """One row per allocated container: its node, its resources, its start and its end; from kept_event and move.

    A container that has not ended has nulls in ended_seq, ended_at and end_state. One whose START event is not in the
    journal has nulls in the columns of that event's payload, such as node and memory_mb.
    """
    ends = f"to_state IN {among(END_STATES)}"
    states = "[" + ", ".join(f"'{state}'" for state in END_STATES) + "]"
    fields = ", ".join(name for name in PAYLOADS[_START])
    return f"""
        SELECT entity AS container, {fields}, started_seq, started_at, ended // {len(END_STATES)} AS ended_seq,
            ended_at, {states}[ended % {len(END_STATES)} + 1] AS end_state
        FROM (
            SELECT entity,
                min(seq) FILTER (to_state = 'ALLOCATED') AS started_seq,
                min("at") FILTER (to_state = 'ALLOCATED') AS started_at,
                -- One number holds seq and end state.
                min(seq * {len(END_STATES)} + list_position({states}, to_state) - 1) FILTER ({ends}) AS ended,
                min("at") FILTER ({ends}) AS ended_at
            FROM move WHERE machine = 'RMContainer' AND valid AND from_state <> to_state
            GROUP BY entity HAVING started_seq IS NOT NULL
        )
        LEFT JOIN ({first_event(*_START)}) USING (entity)
    """


def node_capacity(run: ReportRun) -> str:
    """One row per registered node, with the capacity of its first registration; from kept_event. Not in the report."""
    return f"SELECT * RENAME (entity AS node) FROM ({first_event(*_REGISTRATION)})"


def changes_of_use(intervals: str, names: str) -> str:
    """SQL: one row per start and per end of a container: seq, at, sign (1 or -1), and the columns named."""
    return f"""
        SELECT started_seq AS seq, started_at AS "at", 1 AS sign, {names} FROM ({intervals})
        UNION ALL
        SELECT ended_seq, ended_at, -1, {names} FROM ({intervals}) WHERE ended_seq IS NOT NULL
    """


def node_usage(run: ReportRun) -> str:
    """One row per node and event that changed its containers' resource use: the sums after it; from containers."""
    intervals = "SELECT *, 1 AS containers, gpus * gpu_milli AS gpu_milli_total FROM containers WHERE node IS NOT NULL"
    names = ", ".join(_AMOUNTS)
    # One row per event first: resources that an event both frees and takes do not add up.
    # Sums of doubles, exact for whole numbers like these: sums of integers have 128 bits and take twice as long.
    changed = ", ".join(f"sum((sign * {name})::DOUBLE) AS {name}" for name in _AMOUNTS)
    held = ", ".join(f"sum({name}) OVER (PARTITION BY node ORDER BY seq) AS {name}" for name in _AMOUNTS)
    return f"""
        SELECT node, seq, "at", {held}
        FROM (
            SELECT node, seq, min("at") AS "at", {changed} FROM ({changes_of_use(intervals, "node, " + names)})
            GROUP BY node, seq
        )
    """


def gpu_device_peaks(run: ReportRun) -> str:
    """One row per GPU that a container held: its peak use; from containers."""
    held = "SELECT * FROM containers WHERE node IS NOT NULL AND len(gpu_devices) > 0"
    return f"""
        SELECT node, device, max(taken) AS peak_milli
        FROM (
            SELECT node, device, sum(sum(gpu_milli)) OVER (PARTITION BY node, device ORDER BY seq) AS taken
            FROM (
                SELECT node, seq, unnest(gpu_devices) AS device, sign * gpu_milli AS gpu_milli
                FROM ({changes_of_use(held, "node, gpu_milli, gpu_devices")})
            )
            GROUP BY node, device, seq
        )
        GROUP BY node, device
    """


def node_peaks(run: ReportRun) -> str:
    """One row per node: its capacity and its peak use; from node_usage, gpu_device_peaks and node_capacity.

    Capacities are null if the node's registration is not in the journal; peaks are 0 if it never held a container.
    """
    peaks = ", ".join(f"max({name}) AS {name}" for name in _AMOUNTS)
    return f"""
        SELECT *, coalesce(
            peak_memory_mb > memory_mb OR peak_vcores_milli > vcores_milli OR peak_gpu_milli > gpu_milli
            OR peak_gpu_device_milli > {WHOLE_GPU_MILLI}, false) AS oversubscribed
        FROM (
            SELECT node, rack, gpu_model, c.memory_mb AS memory_mb, coalesce(p.memory_mb, 0) AS peak_memory_mb,
                c.vcores_milli AS vcores_milli, coalesce(p.vcores_milli, 0) AS peak_vcores_milli,
                gpus * {WHOLE_GPU_MILLI} AS gpu_milli, coalesce(gpu_milli_total, 0) AS peak_gpu_milli,
                coalesce(of_device, 0) AS peak_gpu_device_milli, coalesce(containers, 0) AS peak_containers
            FROM node_capacity c
            FULL JOIN (SELECT node, {peaks} FROM node_usage GROUP BY node) p USING (node)
            LEFT JOIN (SELECT node, max(peak_milli) AS of_device FROM gpu_device_peaks GROUP BY node) USING (node)
        )
    """


def containers_over_time(run: ReportRun) -> str:
    """One row per node and interval: the maximum of containers that it held at once; from containers.

    The run is divided into 200 equal intervals. Every interval has a row, because containers that continue to run are
    carried forward; a node that never held a container has none. The node is null for the whole cluster.
    """
    times = TimeBuckets(run.start_at, max(1, -(-(run.end_at - run.start_at + 1) // _BUCKETS)), _BUCKETS)
    # Every change counts for its node and for the cluster, whose node is null.
    intervals = """
        SELECT * EXCLUDE (node), unnest(CASE WHEN node IS NULL THEN [NULL] ELSE [node, NULL] END) AS node
        FROM containers
    """
    return f"""
        WITH changed AS (
            SELECT node, bucket, max(held) AS most, arg_max(held, seq) AS last
            FROM (
                SELECT node, seq, {bucket_of(times, '"at"')} AS bucket,
                    sum(sign::DOUBLE) OVER (PARTITION BY node ORDER BY seq ROWS UNBOUNDED PRECEDING) AS held
                FROM ({changes_of_use(intervals, "node")})
            )
            GROUP BY node, bucket
        ), stretches AS (
            -- Each interval with a change also covers those up to the next change, and the first those before it.
            SELECT *, lag(last, 1, 0) OVER node AS before,
                CASE WHEN lag(bucket) OVER node IS NULL THEN 0 ELSE bucket END AS "from",
                lead(bucket, 1, {_BUCKETS}) OVER node AS upto
            FROM changed WINDOW node AS (PARTITION BY node ORDER BY bucket)
        )
        SELECT node, each AS bucket, {starts_at(times, "each")} AS starts_at,
            CASE WHEN each < bucket THEN 0 WHEN each = bucket THEN greatest(most, before) ELSE last END AS containers
        FROM (SELECT *, unnest(range("from", upto)) AS each FROM stretches)
    """
