"""RMAppAttempt gets a container for its master: what it asks for, on which hosts, and what it does with it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from statemachines.resourcemanager import Resource, UnknownAttemptError
from statemachines.simulation.workload import NodeSpec

from ....kit.scenarios import play
from ..builders import MASTER, Workshop, send
from ..inner import (
    EXIT_ABORTED,
    EXIT_DISKS_FAILED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    EXIT_SUCCESS,
)
from .stage import MachineStage, value_of

FIRST = "appattempt_0_0001_000001"
STORED = "STORE_APP_ATTEMPT.state"


class MasterStage(MachineStage):
    def play(self, verb: str, *words: str) -> None:
        """`nodes` lists the running hosts as `name/GPU`. `allocated` is the size of the master's container."""
        if verb == "nodes":
            for host, _, model in (word.partition("/") for word in words):
                self.workshop.node("RUNNING", NodeSpec(host, Resource(8192, 8000), gpu_model=model or None))
        elif verb == "allocated":
            container = self.workshop.container("ALLOCATED", MASTER)
            container.request = container.request._replace(resource=value_of(words[0]))
            self.workshop.scheduler.allocated = [container]
        elif verb == "avoids":
            self.entity.blacklist.update(words)
        else:
            super().play(verb, *words)

    def do_wants(self, gpu: str) -> None:
        submission = self.entity.app.submission
        self.entity.app.submission = submission._replace(gpu_models=frozenset({gpu}))

    def do_lose_queue(self) -> None:
        self.workshop.scheduler.queue = None

    def do_handle(self) -> None:
        """What was posted last."""
        (event,) = self.step
        self.entity.handle(event)

    def look(self, what: str) -> Iterable[object]:
        scheduler = self.workshop.scheduler
        if what == "asked":
            return [attempt for attempt, _ in scheduler.asked]
        if what == "told":  # which hosts to avoid, and which of them it may use again
            assert {attempt for attempt, *_ in scheduler.blacklisted} <= {FIRST}
            return [
                sign + host
                for _, more, less in scheduler.blacklisted
                for sign, hosts in (("+", more), ("-", less))
                for host in hosts
            ]
        if what == "timers":
            return [self.workshop.clock.pending_timers]
        return super().look(what)


HOSTS = [f"node{number}" for number in range(5)]
EXITS = [
    *((state, 1, "node1") for state in ("LAUNCHED", "RUNNING", "FINAL_SAVING", "FINISHING")),
    ("RUNNING", EXIT_DISKS_FAILED, "node1"),
    *(
        ("RUNNING", status, "")
        for status in (
            *(EXIT_SUCCESS, EXIT_ABORTED, EXIT_PREEMPTED, EXIT_KILLED_BY_RESOURCEMANAGER),
            EXIT_KILLED_AFTER_APP_COMPLETION,
        )
    ),
]

SCENARIOS = {
    **{
        f"the scheduler hears whether the attempt takes containers over: {over}": (
            f"attempt NEW | START transfer_state={over} -> posted APP_ATTEMPT_ADDED ; APP_ATTEMPT_ADDED.entity {FIRST}"
            f"; APP_ATTEMPT_ADDED.transfer_state {over} ; APP_ATTEMPT_ADDED.is_recovering False"
        )
        for over in (False, True)
    },
    "the scheduler is not asked for an unmanaged master": (
        f"attempt SUBMITTED unmanaged_am=True | ATTEMPT_ADDED -> asked ; {STORED}.master_container None"
    ),
    "an attempt whose queue is gone fails and says so": (
        f"attempt SUBMITTED queue=gone | lose_queue | ATTEMPT_ADDED -> asked ; posted FAIL ; FAIL.entity {FIRST}"
        "| handle -> state FINAL_SAVING"
        "; entity.diagnostics queue_gone_of_application_0_0001_no_longer_exists"
    ),
    "the allocated container, of the size that the scheduler gave it, is the master's and stored": (
        "attempt SCHEDULED | nodes node1 | allocated 2048x1000 | CONTAINER_ALLOCATED"
        f"-> entity.master_container {MASTER} ; entity.master_node node1:45454"
        f"; {STORED}.master_container.container_id {MASTER} ; {STORED}.master_container.node node1:45454"
        f"; {STORED}.master_container.resource 2048x1000 ; {STORED}.master_container.http_address node1:8042"
        f"; {STORED}.state None ; STORE_APP_ATTEMPT.notify True"
    ),
    "a missing container is pulled again half a second later": (
        "attempt SCHEDULED | CONTAINER_ALLOCATED | +499 -> posted | +1 -> posted CONTAINER_ALLOCATED"
    ),
    # ALLOCATED has no row for CONTAINER_ALLOCATED.
    "a container is not fetched again when the attempt has gone on": (
        "attempt SCHEDULED | nodes node1 | CONTAINER_ALLOCATED | allocated 1024x1000 | CONTAINER_ALLOCATED"
        "| +500 -> posted"
    ),
    "a container that is there is not fetched again": (
        "attempt SCHEDULED | nodes node1 | allocated 1024x1000 | CONTAINER_ALLOCATED -> timers 0"
    ),
    "the container of a node that is gone is left to its end": (
        "attempt SCHEDULED | allocated 1024x1000 | CONTAINER_ALLOCATED -> entity.master_container None ; timers 0"
    ),
    **{
        f"after {status} of a master that was {state} its host is {'avoided' if avoided else 'not avoided'}": (
            f"attempt {state} | CONTAINER_FINISHED status=MASTER:{status} -> entity.blacklist {avoided}"
        )
        for state, status, avoided in EXITS
    },
    "the end of another container is no reason to avoid its host": (
        "attempt RUNNING | CONTAINER_FINISHED status=TASK:1 -> entity.blacklist"
    ),
    # A master that fails on almost every node fails by itself.
    **{
        f"{avoided} of {hosts} hosts are {'avoided' if sign == '+' else 'too many to avoid'}": (
            f"attempt SUBMITTED | nodes {' '.join(HOSTS[:hosts])} | avoids {' '.join(HOSTS[:avoided])}"
            f"| ATTEMPT_ADDED -> told {' '.join(sign + host for host in HOSTS[:avoided])}"
        )
        for hosts, avoided, sign in ((5, 3, "+"), (5, 4, "-"), (2, 1, "+"), (1, 1, "-"))
    },
    # Otherwise the attempt would wait forever for the only node with its GPU.
    "nodes that could not run the master are not counted as left": (
        "attempt SUBMITTED | wants gpu=T4 | nodes node1/T4 node2/P100 node3/P100 node4/P100 | avoids node1"
        "| ATTEMPT_ADDED -> told -node1"
    ),
    "hosts are no longer avoided when the master has its container": (
        "attempt SCHEDULED | avoids node7 | nodes node1 | allocated 1024x1000 | CONTAINER_ALLOCATED -> told -node7"
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_master(script: str) -> None:
    play(MasterStage(), script)


def test_start_opens_the_door_to_the_master_and_leaving_closes_it(workshop: Workshop) -> None:
    attempt = workshop.attempt()
    masters = workshop.masters

    send(attempt, "START")
    masters.register_application_master(attempt.entity)
    for event in ("KILL", "ATTEMPT_UPDATE_SAVED"):
        send(attempt, event)

    with pytest.raises(UnknownAttemptError, match="not registered"):
        masters.register_application_master(attempt.entity)


def test_request_for_the_master_is_what_the_client_submitted(workshop: Workshop) -> None:
    models = frozenset({"T4"})
    attempt = workshop.attempt("SUBMITTED", am_host="node7", gpu_models=models, node_label="fast")

    send(attempt, "ATTEMPT_ADDED")

    ((asker, request),) = workshop.scheduler.asked
    assert asker == attempt.entity
    assert (request.resource, request.host) == (attempt.app.submission.am_resource, "node7")
    assert (request.priority, request.kind, request.gpu_models, request.node_label) == (0, "AM", models, "fast")
    assert workshop.scheduler.blacklisted == []
