"""The first screen: the sentences, their order, and that each names and links to the worst case."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("duckdb")

from pipeline.journal import Problem
from pipeline.report.page.headlines import MOST, headlines
from pipeline.report.page.page_views import Figure

from .page_rows import Tables, page_data, small_tables

CUT = Problem("segment-00000001.journal", 8, 9, "segment-00000001.journal: cut", 3, 1)


def by_name(rows: Tables, **more: Any) -> dict[str, Figure]:
    return {figure.name: figure for figure in headlines(page_data(rows, **more))}


def sentence(figure: Figure) -> str:
    return f"{figure.value} {figure.detail}"


def sound_tables() -> Tables:
    """Of a run in which nothing is wrong."""
    tables = small_tables()
    for name in ("failures", "stuck_entities", "unknown_transitions"):
        tables[name] = []
    tables["events_by_type"][0]["failed"] = 0
    tables["waiting_by_queue"][0]["never_placed"] = 0
    tables["node_peaks"][0] |= {"oversubscribed": False, "peak_memory_mb": 1024}
    return tables


def test_there_are_at_most_ten_sentences_and_the_worst_come_first() -> None:
    figures = headlines(page_data(small_tables(), damage=[CUT]))

    assert [(figure.name, figure.mood) for figure in figures] == [
        ("Damage", "bad"),
        ("Failures by cause", "bad"),
        ("Unknown transitions", "bad"),
        ("Waits", "bad"),
        ("Nodes", "bad"),
        ("Stuck and slow", "warn"),
        ("Applications", ""),
        ("Events over time", ""),
        ("Events by type", ""),
        ("Slowest handlers", ""),
    ]
    assert len(figures) == MOST


def test_a_sound_run_has_nothing_red_and_names_what_was_looked_for() -> None:
    figures = headlines(page_data(sound_tables()))

    assert {figure.mood for figure in figures} == {"", "good"}
    assert sentence(figures[-1]) == (
        "Nothing is wrong: no damage in the journal, no failure, no stuck entity, no undeclared or rejected transition."
    )


def test_next_to_a_problem_only_the_rest_is_sound() -> None:
    figures = by_name(sound_tables(), damage=[CUT, CUT])

    assert figures["Problems"].value == "Nothing else is wrong with what can be read:"
    assert "damage" not in figures["Problems"].detail
    assert sentence(figures["Damage"]) == (
        "2 parts of the journal cannot be read; missing from the figures on this page: 6 events and 2 transitions."
    )
    assert ": at least 4 events" in sentence(figures["Events over time"])


def test_failures_are_counted_by_kind_with_the_most_frequent_cause() -> None:
    tables = small_tables()
    tables["applications_by_final_state"] = [
        {"final_state": "FAILED", "is_final": True, "applications": 1},
        {"final_state": "KILLED", "is_final": True, "applications": 14},
    ]

    failures = by_name(tables)["Failures by cause"]

    assert sentence(failures) == (
        "2 events failed, 1 application failed, 14 applications were killed. "
        "The most frequent cause, 2 times: ATypex GOx failed with ValueErrorx."
    )
    assert failures.link == "table-failures"


def test_applications_that_users_killed_are_no_failure_of_the_system() -> None:
    tables = sound_tables()
    tables["applications_by_final_state"] = [{"final_state": "KILLED", "is_final": True, "applications": 1}]
    cause = dict.fromkeys(("event_class", "error_class", "example_entity", "example_error", "reason"))
    killed = {"subject": "RMApp", "result": "KILLED", "event_type": "KILL", "from_state": "RUNNING", "count": 1}
    tables["failures"] = [{**cause, **killed, "first_seq": 1, "last_seq": 1}]

    failures = by_name(tables)["Failures by cause"]

    assert failures.mood == "warn"
    assert (
        sentence(failures)
        == "1 application was killed. The most frequent cause, once: RMApp KILLED by KILL in RUNNING."
    )


def test_a_scheduler_s_reason_for_a_refusal_is_told() -> None:
    tables = sound_tables()
    refused = {"subject": "RMApp", "result": "FAILED", "event_type": "APP_REJECTED", "from_state": "SUBMITTED"}
    tables["failures"] = [{**refused, "count": 3, "reason": "no queue q"}]

    detail = by_name(tables)["Failures by cause"].detail

    assert detail.endswith("RMApp FAILED by APP_REJECTED in SUBMITTED (no queue q).")


def test_only_entities_that_are_still_in_a_state_are_stuck() -> None:
    tables = small_tables()
    stay = tables["stuck_entities"][0]
    tables["stuck_entities"] = [stay | {"entity": "slow", "is_open": False}, stay, stay]

    stuck = by_name(tables)["Stuck and slow"]

    assert sentence(stuck) == (
        "2 entities stayed in a state to the end, longer than usual; the worst, appx, 1 min 35 s in SAVINGx, "
        "which 99 % leave within 2 s."
    )
    tables["stuck_entities"] = tables["stuck_entities"][:1]
    assert "Stuck and slow" not in by_name(tables)


def test_a_full_table_of_stuck_entities_may_not_be_all() -> None:
    tables = small_tables()
    tables["stuck_entities"] *= 100

    assert by_name(tables)["Stuck and slow"].value.startswith("At least 100 entities")


def test_applications_without_a_container_come_before_the_longest_wait() -> None:
    waits = by_name(small_tables())["Waits"]

    assert sentence(waits) == (
        "1 application never got a container; in queue qx, the slowest, 95 % of the applications waited up to "
        "1 min 30 s for their first container, and one waited 1 min 30 s."
    )
    assert (waits.mood, waits.link) == ("bad", "table-applications")


def test_the_slowest_queue_is_named() -> None:
    tables = sound_tables()
    quick = tables["waiting_by_queue"][0]
    tables["waiting_by_queue"] = [quick, quick | {"queue": "slow", "p95_s": 95.0, "max_s": 120.0, "begun_earlier": 2}]

    waits = by_name(tables)["Waits"]

    assert sentence(waits) == (
        "2 min was the longest wait; in queue slow, the slowest, 95 % of the applications waited up to 1 min 35 s "
        "for their first container, and one waited 2 min. "
        "Waits of 2 applications are unknown: the journal begins later."
    )
    assert (waits.mood, waits.link) == ("", "table-waiting-by-queue")


def test_a_run_without_waits_says_so() -> None:
    tables = sound_tables()
    tables["waiting_by_queue"][0] |= {"p50_s": 0.0, "p95_s": 0.0, "max_s": 0.0}

    assert sentence(by_name(tables)["Waits"]) == "No application waited: each got its first container at once."


def test_the_fullest_node_is_named_by_its_scarcest_resource() -> None:
    assert sentence(by_name(small_tables())["Nodes"]) == (
        "1 of 1 node oversubscribed, the worst nx with memory 2 GiB of 1 GiB; up to 3 containers at once."
    )
    tables = sound_tables()
    tables["node_peaks"][0]["peak_memory_mb"] = 512
    assert sentence(by_name(tables)["Nodes"]) == (
        "1 node, none oversubscribed; up to 3 containers at once. The fullest: nx with virtual cores 1 of 1."
    )


def test_totals_count_more_than_the_rows_on_the_page() -> None:
    totals = {"containers": 1500, "nodes": 7000, "oversubscribed_nodes": 6000, "unknown_transitions": 12}

    figures = by_name(small_tables(), totals=totals)

    assert figures["Nodes"].value == "6,000 of 7,000 nodes oversubscribed,"
    assert figures["Nodes"].detail.endswith("up to 3 containers at once, 1,500 in all.")
    assert sentence(figures["Unknown transitions"]) == (
        "12 transitions undeclared or rejected, of 13. The most frequent: RMAppx from NEW to SAVINGx on STARTx, once."
    )


def test_unfinished_applications_are_told_apart() -> None:
    tables = small_tables()
    tables["applications_by_final_state"].append({"final_state": "RUNNING", "is_final": False, "applications": 3})

    assert sentence(by_name(tables)["Applications"]) == (
        "5 applications; ended: 2 FINISHEDx; not ended: 3 RUNNING. "
        "The longest, appx, took 1 min 10 s, most of it running."
    )


def test_the_run_its_event_types_and_its_slowest_handler_have_a_sentence_each() -> None:
    tables = small_tables()
    slow = tables["events_by_type"][0] | {"event_type": "SLOW", "handling_mean_us": 9e3, "handling_total_ms": 2.0}
    tables["events_by_type"].append(slow)

    figures = by_name(tables)

    assert sentence(figures["Events over time"]) == (
        "1 min 40 s from the first event to the last: 4 events, 0.04 per second, and 13 state transitions."
    )
    assert sentence(figures["Events by type"]) == (
        "ATypex GOx took 80 % of the handlers' time (8 ms for 4 events); "
        "the slowest on average was ATypex SLOW, at 9 ms."
    )
    assert sentence(figures["Slowest handlers"]) == (
        "2.5 ms was the longest call of a handler: ATypex GOx of appx (seq 7)."
    )


def test_an_empty_journal_has_one_sentence() -> None:
    [figure] = headlines(page_data({})._replace(first_at=None, last_at=None))

    assert figure.value == "The journal is empty:"
