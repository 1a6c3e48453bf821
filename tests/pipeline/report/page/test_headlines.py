"""The first screen: the sentences, their order, and that each names and links to the worst case."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("duckdb")

from pipeline.journal import Problem
from pipeline.report.page.headlines import headlines

from ....kit.tables import paired
from .page_rows import Tables, page_data, small_tables

CUT = Problem("segment-00000001.journal", 8, 9, "segment-00000001.journal: cut", 3, 1)


def by_name(rows: Tables, **more: Any) -> dict[str, Any]:
    return {figure.name: figure for figure in headlines(page_data(rows, **more))}


def sentence(figure: Any) -> str:
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


# Of which run, with which changes of the first row of its tables; the sentence with its name, mood and link.
SENTENCES = r"""
small, {"applications_by_final_state": [{"final_state": "FAILED", "applications": 1}, {"final_state": "KILLED"}]}
    Failures by cause (bad, table-failures): 2 events failed, 1 application failed, 2 applications were killed. \
The most frequent cause, 2 times: ATypex GOx failed with ValueErrorx.
# what users killed is no failure of the system
sound, {"applications_by_final_state": [{"final_state": "KILLED", "applications": 1}], "failures": [\
{"subject": "RMApp", "result": "KILLED", "event_type": "KILL", "from_state": "RUNNING", "count": 1, "reason": null}]}
    Failures by cause (warn, table-failures): 1 application was killed. \
The most frequent cause, once: RMApp KILLED by KILL in RUNNING.
sound, {"failures": [{"subject": "RMApp", "result": "FAILED", "event_type": "APP_REJECTED", "from_state": "SUBMITTED", \
"count": 3, "reason": "no queue q"}]}
    Failures by cause (warn, table-failures): ... RMApp FAILED by APP_REJECTED in SUBMITTED (no queue q).
# only entities that are still in a state are stuck, and a full table of them may not be all
small, {"stuck_entities": [{"entity": "slow", "is_open": false}, {}, {}]}
    Stuck and slow (warn, table-stuck-entities): 2 entities stayed in a state to the end, longer than usual; \
the worst, appx, 1 min 35 s in SAVINGx, which 99 % leave within 2 s.
small, {"stuck_entities": [HUNDRED]}
    Stuck and slow (warn, table-stuck-entities): At least 100 entities ...
# applications without a container come before the longest wait
small, {}
    Waits (bad, table-applications): 1 application never got a container; in queue qx, the slowest, 95 % of the \
applications waited up to 1 min 30 s for their first container, and one waited 1 min 30 s.
sound, {"waiting_by_queue": [{}, {"queue": "slow", "p95_s": 95.0, "max_s": 120.0, "begun_earlier": 2}]}
    Waits (, table-waiting-by-queue): 2 min was the longest wait; in queue slow, the slowest, 95 % of the applications \
waited up to 1 min 35 s for their first container, and one waited 2 min. \
Waits of 2 applications are unknown: the journal begins later.
sound, {"waiting_by_queue": [{"p50_s": 0.0, "p95_s": 0.0, "max_s": 0.0}]}
    Waits: No application waited: each got its first container at once.
# the fullest node is named by its scarcest resource
small, {}
    Nodes: 1 of 1 node oversubscribed, the worst nx with memory 2 GiB of 1 GiB; up to 3 containers at once.
sound, {"node_peaks": [{"peak_memory_mb": 512}]}
    Nodes: 1 node, none oversubscribed; up to 3 containers at once. The fullest: nx with virtual cores 1 of 1.
small, {"applications_by_final_state": [{}, {"final_state": "RUNNING", "is_final": false, "applications": 3}]}
    Applications: 5 applications; ended: 2 FINISHEDx; not ended: 3 RUNNING. \
The longest, appx, took 1 min 10 s, most of it running.
small, {}
    Events over time: 1 min 40 s from the first event to the last: 4 events, 0.04 per second, and 13 state transitions.
small, {"events_by_type": [{}, {"event_type": "SLOW", "handling_mean_us": 9e3, "handling_total_ms": 2.0}]}
    Events by type: ATypex GOx took 80 % of the handlers' time (8 ms for 4 events); \
the slowest on average was ATypex SLOW, at 9 ms.
small, {}
    Slowest handlers: 2.5 ms was the longest call of a handler: ATypex GOx of appx (seq 7).
"""


@pytest.mark.parametrize(
    ("given", "said"), paired(SENTENCES.replace("\\\n", "").replace("HUNDRED", ",".join(["{}"] * 100)))
)
def test_each_subject_has_a_sentence(given: str, said: str) -> None:
    run, changes = given.split(", ", 1)
    tables = small_tables() if run == "small" else sound_tables()
    for table, rows in json.loads(changes).items():
        tables[table] = [(tables[table] or [{}])[0] | row for row in rows]
    name = re.split(r" \(|: ", said)[0]

    figure = by_name(tables)[name]

    about = f"{name} ({figure.mood}, {figure.link})" if " (" in said.partition(": ")[0] else name
    assert re.fullmatch(re.escape(said).replace(r"\.\.\.", ".*"), f"{about}: {sentence(figure)}")


def test_totals_count_more_than_the_rows_on_the_page() -> None:
    totals = {"containers": 1500, "nodes": 7000, "oversubscribed_nodes": 6000, "unknown_transitions": 12}

    figures = by_name(small_tables(), totals=totals)

    assert figures["Nodes"].value == "6,000 of 7,000 nodes oversubscribed,"
    assert figures["Nodes"].detail.endswith("up to 3 containers at once, 1,500 in all.")
    assert sentence(figures["Unknown transitions"]) == (
        "12 transitions undeclared or rejected, of 13. The most frequent: RMAppx from NEW to SAVINGx on STARTx, once."
    )


def test_an_empty_journal_has_one_sentence() -> None:
    [figure] = headlines(page_data({}, first_at=None, last_at=None))

    assert figure.value == "The journal is empty:"
