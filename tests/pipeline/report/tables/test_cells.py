"""What the report's tables say of small journals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ....kit.scenarios import play
from ...journal_builder import SECOND, JournalBuilder
from .at_hand import in_order, of_journal

pytestmark = pytest.mark.long

DECLARED = [
    ("RMApp", "NEW", "START", "NEW_SAVING"),
    ("RMApp", "NEW", "START", "NEW_SAVING"),
    ("RMApp", "KILLED", "KILL", "KILLED"),
    ("MRJob", "NEW", "JOB_INIT", "INITED"),
]
NAMES = {
    **{f"app{number}": f"application_0_000{number}" for number in range(1, 5)},
    **{f"c{number}": f"container_0_0001_01_00000{number}" for number in range(1, 4)},
    **{f"master{number}": f"container_0_000{number}_01_000001" for number in range(2, 5)},
    "attempt1": "appattempt_0_0001_000001",
}
SHORT = {name: short for short, name in NAMES.items()}


class Cells:
    """A journal, and its tables.

    A step adds a row to the journal, whose seq is one more than that of the row before: the verb is a method of the
    builder, `key=value` a column. `10s` is a time. A look shows the cells of a table or, behind a dot, of some columns;
    slashes part the rows.
    """

    def __init__(self, journal: JournalBuilder) -> None:
        self._journal = journal
        self._seq = 0

    def play(self, verb: str, *words: str) -> None:
        if verb == "nothing":
            return
        names = [NAMES.get(word, word) for word in words if "=" not in word]
        columns = {name: value_of(text) for name, text in (word.split("=", 1) for word in words if "=" in word)}
        self._seq = columns.pop("seq", self._seq + 1)
        if verb == "move":
            names[2:] = [" ".join(names[2:])]
        getattr(self._journal, verb)(self._seq, *names, **columns)

    def look(self, what: str) -> Iterator[object]:
        table, _, columns = what.partition(".")
        rows = of_journal(self._journal, DECLARED).dicts(table)
        cells = in_order(tuple(row[name] for name in (columns.split(",") if columns else row)) for row in rows)
        for number, row in enumerate(cells):
            yield from ["/"] * (number > 0)
            yield from map(text_of, row)


def value_of(text: str) -> Any:
    if re.fullmatch(r"\d+s", text):
        return int(text[:-1]) * SECOND
    try:
        return json.loads(text)
    except ValueError:
        return NAMES.get(text, text)


def text_of(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.6g}"
    if isinstance(cell, int) and cell >= SECOND:
        return f"{cell // SECOND}s"
    return SHORT.get(cell, cell) if isinstance(cell, str) else str(cell).replace(" ", "")


APPLICATIONS = {
    "a finished application has its times": """
        submit app1 at=10 name=sort queue=prod | allocate c2 h1:1 at=15 | allocate c1 h1:1 at=13
        | move RMApp app1 RUNNING ATTEMPT_FINISHED FINISHED at=20 | move RMApp app1 FINISHED KILL FINISHED at=30
        -> applications app1 sort ann prod FINISHED True 10s 13s 20s 3
    """,
    "an application never placed and not ended has nulls": """
        submit app1 at=10 | move RMApp app1 NEW_SAVING APP_NEW_SAVED SUBMITTED at=10
        -> applications app1 job ann default SUBMITTED False 10s None None None
    """,
    "the last state goes by seq where times are equal": """
        submit app1 | move RMApp app1 SUBMITTED APP_ACCEPTED ACCEPTED seq=3
        | move RMApp app1 NEW_SAVING APP_NEW_SAVED SUBMITTED seq=2 -> applications.final_state ACCEPTED
    """,
    "a refused transition does not change the final state": """
        submit app1 | move RMApp app1 NEW_SAVING APP_UPDATE_SAVED NEW_SAVING valid=false
        | move RMApp app1 FINISHED START FINISHED valid=false -> applications.final_state NEW_SAVING
    """,
    "an application without its start keeps its row": """
        move RMApp app1 RUNNING KILL KILLING at=5 | move RMApp app1 KILLING ATTEMPT_FINISHED FINISHED at=6
        -> applications app1 None None None FINISHED True None None 6s None
    """,
    "an application whose start failed is still new": """
        event RMAppEventType START app1 outcome=failed payload={"name":"sort"} -> applications.final_state NEW
    """,
    "a second start adds no row": """
        submit app1 name=first | event RMAppEventType START app1 payload={"name":"second"} -> applications.name first
    """,
    "the first of two starts counts if one was redelivered": """
        event RMAppEventType START app1 seq=2 at=20 payload={"name":"first"} | event AType START app1 at=30
        | event RMAppEventType START app1 seq=5 at=50 payload={"name":"again"}
        -> applications.id,submitted_at,name app1 20s first
    """,
    "a payload of no use leaves nulls": """
        event RMAppEventType START app1 payload=["no","object"]
        | event RMAppEventType START app2 payload={"name":{"not":"a_text"},"queue":"a"}
        -> applications.id,user,queue app1 None None / app2 None a
    """,
    "applications are counted by final state": """
        submit app1 | submit app2 | submit app3 | move RMApp app2 NEW_SAVING APP_SAVE_FAILED FAILED
        -> applications_by_final_state FAILED True 1 / NEW_SAVING False 2
    """,
    "waiting is summed up per queue": """
        submit app1 at=100 queue=a | allocate c1 h1:1 at=101 application=app1
        | submit app2 at=100 queue=a | allocate master2 h1:1 at=103 application=app2
        | submit app3 at=100 queue=a | submit app4 at=100 queue=b
        -> waiting_by_queue a 3 2 2.9 3 1 0 / b 1 None None None 1 0
    """,
}
CONTAINERS = {
    "an interval lasts from allocated to the first end state": """
        allocate c1 h1:1 at=10 gpus=2 gpu_milli=500 gpu_devices=[0,3] | move RMContainer c1 ALLOCATED ACQUIRED ACQUIRED
        | move RMContainer c1 ACQUIRED RELEASED RELEASED at=12 | move RMContainer c1 RELEASED FINISHED RELEASED at=13
        -> containers c1 app1 attempt1 h1:1 map 1024 1000 2 500 [0,3] 1 10s 3 12s RELEASED
    """,
    "a running container has no end": """
        allocate c1 h1:1 at=10 -> containers c1 app1 attempt1 h1:1 map 1024 1000 0 1000 [] 1 10s None None None
    """,
    "a container that was only reserved occupies nothing": """
        move RMContainer c1 NEW RESERVED RESERVED | move RMContainer c1 RESERVED KILL KILLED -> containers
    """,
    "a container without its start keeps its row": """
        move RMContainer c1 NEW START ALLOCATED at=1 -> containers.container,node,started_at c1 None 1s
    """,
    # By time alone both containers would seem to run at once, and the node to be oversubscribed.
    "usage goes by seq within one nanosecond": """
        allocate c1 h1:1 memory_mb=4096 | complete c1 at=7
        | allocate c2 h1:1 at=7 memory_mb=3072 gpus=2 gpu_milli=500 gpu_devices=[0,1] | complete c2 at=7
        -> node_usage h1:1 1 0 1 4096 1000 0 / h1:1 2 7s 0 0 0 0 / h1:1 3 7s 1 3072 1000 1000 / h1:1 4 7s 0 0 0 0
    """,
    "changes of one event are one row": """
        allocate c1 h1:1 | allocate c2 h1:1
        | move RMContainer c1 ALLOCATED KILL KILLED seq=3 at=5 | move RMContainer c2 ALLOCATED KILL KILLED seq=3 at=5
        -> node_usage h1:1 1 0 1 1024 1000 0 / h1:1 2 0 2 2048 2000 0 / h1:1 3 5s 0 0 0 0
    """,
    "device peaks add up the shares of each GPU": """
        allocate c1 h1:1 gpus=2 gpu_milli=600 gpu_devices=[0,1] | allocate c2 h1:1 gpus=1 gpu_milli=300 gpu_devices=[1]
        | complete c1 | allocate c3 h1:1 gpus=1 gpu_milli=700 gpu_devices=[1]
        -> gpu_device_peaks h1:1 0 600 / h1:1 1 1000
    """,
    "without containers the table over time is empty": "event AType A -> containers_over_time",
}
NODES = {
    "a node's capacity comes from its registration": """
        node h1:1 gpus=2 | event RMNodeEventType STARTED h2:1 payload={"host":"h2","rack":"/r2","gpu_model":"T4"}
        -> node_capacity h1:1 h1 /r1 None 4096 4000 2 / h2:1 h2 /r2 T4 None None None
    """,
    "peaks stand next to capacities": """
        node h1:1 gpus=2 | node idle:1 | allocate c1 h1:1 memory_mb=4000 gpus=2 gpu_milli=500 gpu_devices=[0,1]
        | complete c1 | allocate c2 h1:1 vcores_milli=3000 | allocate c3 lost:1
        -> node_peaks h1:1 /r1 None 4096 4000 4000 3000 2000 1000 500 1 False
        / idle:1 /r1 None 4096 0 4000 0 0 0 0 0 False / lost:1 None None None 1024 None 1000 None 0 0 1 False
    """,
    "a node with more memory in use than its capacity is found": """
        node h1:1 memory_mb=2047 | node h2:1 memory_mb=2048
        | allocate c1 h1:1 | allocate c2 h1:1 | allocate c3 h2:1
        -> node_peaks.node,oversubscribed h1:1 True / h2:1 False
    """,
    "an oversubscribed GPU is found on a node with room": """
        node h1:1 gpus=4 | allocate c1 h1:1 gpus=1 gpu_milli=600 gpu_devices=[2]
        | allocate c2 h1:1 gpus=1 gpu_milli=401 gpu_devices=[2] -> node_peaks.oversubscribed True
    """,
}
TRANSITIONS = {
    "undeclared and refused transitions are unknown": """
        move RMApp app1 NEW START NEW_SAVING | move RMApp app2 NEW START NEW_SAVING
        | move RMApp app1 NEW_SAVING KILL KILLED
        | move RMApp app1 KILLED START KILLED valid=false | move RMApp app1 KILLED KILL KILLED valid=false
        -> unknown_transitions RMApp KILLED KILL KILLED 1 False True / RMApp KILLED START KILLED 1 False False
        / RMApp NEW_SAVING KILL KILLED 1 True False
        ; transition_counts RMApp KILLED KILL KILLED 1 False True / RMApp KILLED START KILLED 1 False False
        / RMApp NEW START NEW_SAVING 2 True True / RMApp NEW_SAVING KILL KILLED 1 True False
    """,
    "no transitions give no counts": "event AType A -> transition_counts",
    "the mined graph includes declared transitions that were never made, of machines that were": """
        move RMApp app1 NEW START NEW_SAVING | move RMApp app1 KILLED KILL KILLED valid=false
        | move RMApp app1 NEW_SAVING KILL KILLED
        -> mined_graph RMApp KILLED KILL KILLED 0 True True / RMApp KILLED KILL KILLED 1 False True
        / RMApp NEW START NEW_SAVING 1 True True / RMApp NEW_SAVING KILL KILLED 1 True False
    """,
}
TOTALS = {
    "totals cover the run from first arrival to last end": """
        event AType A at=5 enqueued_at=4s | event AType A at=6 finished_at=9s outcome=failed
        | move RMApp app1 NEW START NEW_SAVING seq=1 at=5 -> run_totals 2 1 1 4s 9s
    """,
    "totals hold transitions beyond the last closed segment of events": """
        event AType A at=5 | move RMApp app1 NEW START NEW_SAVING seq=1 at=5
        | move RMApp app1 NEW_SAVING KILL FINAL_SAVING at=7 -> run_totals 1 0 2 5s 7s
    """,
    "totals of an empty journal have no times": "nothing -> run_totals 0 0 0 None None",
}
SCRIPTS = APPLICATIONS | CONTAINERS | NODES | TRANSITIONS | TOTALS


@pytest.mark.parametrize("promise", SCRIPTS)
def test_a_journal_has_these_rows(journal: JournalBuilder, promise: str) -> None:
    play(Cells(journal), SCRIPTS[promise])
