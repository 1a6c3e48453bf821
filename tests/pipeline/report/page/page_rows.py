"""A row of each table of the report, as its page reads them, and the page of such rows."""

from __future__ import annotations

from typing import Any

from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_sections import render_page

SECOND = 1_000_000_000

Tables = dict[str, list[dict[str, Any]]]


def page_data(rows: Tables, **more: Any) -> PageData:
    """The data of a page about a run of 100 seconds; `first_at` and `last_at` change its span."""
    span = {"first_at": 0, "last_at": 100 * SECOND}
    return PageData(journal="/some/journal", rows=rows, **span | more)


def rendered(rows: Tables, **more: Any) -> str:
    return render_page(page_data(rows, **more))


def small_tables(name: str = "x", *, first_at: int = 0) -> Tables:
    """Every table with a row or two; every name that comes from a journal ends in `name`."""
    kind = {"machine": f"RMApp{name}", "from_state": "NEW", "event_type": f"START{name}", "to_state": f"SAVING{name}"}
    event = {"event_class": f"AType{name}", "event_type": f"GO{name}"}
    waits = {"applications": 2, "p50_s": 1.5, "p95_s": 90.0, "max_s": 90.5, "never_placed": 1, "begun_earlier": 0}
    bucket = {"bucket": 0, "starts_at": first_at}
    shares = {**bucket, "memory_share": 0.5, "vcores_share": 0.25, "gpu_share": None}
    times = {"queue": 10.0, "handling": 2000.0}
    return {
        "run_totals": [
            {"events": 4, "failed_events": 2, "transitions": 13}
            | {"first_at": first_at, "last_at": first_at + 100 * SECOND}
        ],
        "applications_by_final_state": [{"final_state": f"FINISHED{name}", "is_final": True, "applications": 2}],
        "waiting_by_queue": [{"queue": f"q{name}", **waits}],
        "waiting_by_user": [{"queue": f"q{name}", "user": f"ann{name}", **waits}],
        "applications": [
            {"id": f"app{name}", "name": f"job{name}", "user": f"ann{name}", "queue": f"q{name}"}
            | {"final_state": f"FINISHED{name}", "submitted_at": first_at + 5 * SECOND}
            | dict.fromkeys(("first_container_at", "ended_at", "wait_s"))
        ],
        "critical_paths": [
            {"application": f"app{name}", "final_state": f"FINISHED{name}", "total_s": 70.0}
            | dict.fromkeys(("saving_s", "admission_s", "launching_s", "finishing_s"), 0.0)
            | {"scheduling_s": 10.0, "running_s": 60.0, "longest_phase": "running"}
        ],
        "application_timeline": [
            {"application": f"app{name}", "seq": 1, "state": f"RUNNING{name}"}
            | {"from_at": first_at + 5 * SECOND, "to_at": None}
        ],
        "node_utilisation": [{"node": None, **shares}, {"node": f"n{name}", **shares}],
        "queue_utilisation": [{"queue": f"q{name}", **shares}],
        "containers_over_time": [{"node": None, **bucket, "containers": 3}],
        "node_peaks": [
            {"node": f"n{name}", "rack": f"/r{name}", "gpu_model": f"T4{name}", "oversubscribed": True}
            | {"memory_mb": 1024, "peak_memory_mb": 2048, "vcores_milli": 1000, "peak_vcores_milli": 1000}
            | {"gpu_milli": 0, "peak_gpu_milli": 0, "peak_gpu_device_milli": 0, "peak_containers": 2}
        ],
        "failures": [
            {"subject": "event", "result": "failed", "from_state": None, **event, "error_class": f"ValueError{name}"}
            | {"count": 2, "first_seq": 7, "last_seq": 9, "reason": f"why{name}"}
            | {"example_entity": f"app{name}", "example_error": f"ValueError{name}"}
        ],
        "stuck_entities": [
            {"machine": f"RMApp{name}", "entity": f"app{name}", "state": f"SAVING{name}"}
            | {"from_at": first_at + 5 * SECOND, "stay_s": 95.0, "p99_s": 2.0, "is_open": True}
        ],
        "unknown_transitions": [{**kind, "count": 1, "valid": False, "declared": False}],
        "mined_graph": [
            {**kind, "count": 12, "valid": True, "declared": True},
            {**kind, "from_state": f"SAVING{name}", "to_state": "NEW", "count": 1, "valid": False, "declared": False},
        ],
        "time_in_state": [
            {"machine": f"RMApp{name}", "state": f"SAVING{name}", "count": 3}
            | {"p50_s": 1.0, "p95_s": 2.0, "p99_s": 3.0, "max_s": 4.0}
        ],
        "events_by_type": [
            {
                **event,
                "count": 4,
                "failed": 2,
                "unregistered": 0,
                **{f"{part}_mean_us": us for part, us in times.items()},
                **{f"{part}_p99_us": 2 * us for part, us in times.items()},
                "handling_total_ms": 8.0,
            }
        ],
        "event_times": [
            {
                **bucket,
                **event,
                "count": 4,
                **{f"{part}_{of}_us": us for part, us in times.items() for of in ("mean", "p50", "p99", "max")},
            }
        ],
        "slowest_handlers": [
            {"seq": 7, **event, "entity": f"app{name}", "handling_ms": 2.5, "at": first_at + 5 * SECOND}
        ],
        "queue_depth": [
            {**bucket, "arrivals": 10, "starts": 4, "depth": 6, "greatest_depth": 7},
            {"bucket": 1, "starts_at": first_at + SECOND, "arrivals": 0, "starts": 6, "depth": 0, "greatest_depth": 6},
        ],
        "comparison": [
            {"subject": f"queue q{name}", "metric": "wait p95", "unit": "s"}
            | {"before": 90.0, "after": 45.0, "change": -0.5}
        ],
    }
