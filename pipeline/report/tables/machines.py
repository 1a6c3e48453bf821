"""Tables of the state machines: the kinds of their transitions, the time in each state, and outliers."""

from __future__ import annotations

from pipeline.report.digests.run import ReportRun
from pipeline.report.tables.sql import KIND, summed_up

_KIND = ", ".join(KIND)
_STUCK = 100


def transition_counts(run: ReportRun) -> str:
    """One row per kind of transition that was made or refused; from transition_count and the declared transitions."""
    return f"""
        SELECT {_KIND}, "count", valid, declared IS NOT NULL AS declared
        FROM transition_count LEFT JOIN (SELECT *, true AS declared FROM declared) USING ({_KIND})
    """


def mined_graph(run: ReportRun) -> str:
    """The rows of transition_counts, and with count 0 the declared but never made transitions of their machines."""
    return f"""
        SELECT {_KIND}, "count", valid, declared FROM transition_counts
        UNION ALL
        SELECT {_KIND}, 0, true, true
        FROM declared SEMI JOIN transition_counts USING (machine)
        ANTI JOIN (FROM transition_counts WHERE valid) USING ({_KIND})
    """


def unknown_transitions(run: ReportRun) -> str:
    """The rows of transition_counts that no machine declares, or that a machine refused."""
    return f'SELECT {_KIND}, "count", valid, declared FROM transition_counts WHERE NOT declared OR NOT valid'


def time_in_state(run: ReportRun) -> str:
    """One row per machine and state: the durations of its completed stays; from stay_group."""
    percentiles = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
    seconds = ", ".join(f"{name} / 1e9::DOUBLE AS {name}" for name in percentiles)
    return f"""
        SELECT machine, state, "count", {seconds}, greatest / 1e9::DOUBLE AS max_s
        FROM ({summed_up("FROM stay_group", "machine, state", percentiles)})
    """


def stuck_entities(run: ReportRun) -> str:
    """One row per stay, completed or open, of the 100 that exceed the 99th percentile of their state by the most time.

    From long_stay, stretch and time_in_state. Stays in a state that no entity has left are omitted: without a completed
    stay there is no percentile.
    """
    return f"""
        SELECT machine, entity, state, from_at, stay_ns / 1e9::DOUBLE AS stay_s, p99_s, is_open
        FROM (
            SELECT machine, entity, state, seq, from_at, stay_ns, false AS is_open FROM long_stay
            UNION ALL
            SELECT machine, entity, to_state, last_seq, last_at, greatest(0, {run.end_at} - last_at), true
            FROM stretch WHERE (machine, to_state) NOT IN (SELECT (machine, state) FROM final_state)
        )
        JOIN (SELECT machine, state, p99_s FROM time_in_state) USING (machine, state)
        WHERE stay_s > p99_s
        ORDER BY stay_s - p99_s DESC, machine, entity, seq LIMIT {_STUCK}
    """
