"""What REST, the pages and the CSV say of an application that has ended is the same after a restart."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from statemachines.resourcemanager import FinalApplicationStatus, NMContainerStatus, Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Master, Yarn, ask
from ..inner import ApplicationAttemptStateData, ApplicationStateData, MemoryRMStateStore, RMState, decode, encode
from .served import BASE, Served

pytestmark = pytest.mark.long

MAY_DIFFER: Final = frozenset({"clusterId"})
"""It is the start of the resource manager that answers. A `trackingUrl` to its own page begins with its own address."""
PARTS: Final = ("head", "waiting", "facts", "attempts", "containers")
"""Of an application's page: all but the timeline and the history, which are the journal's."""
QUEUES: Final = [{"name": name, "capacity": 50, "user_limit_factor": 10} for name in ("a", "b")]
SCHEDULER: Final = {
    "kind": "capacity",
    "queues": QUEUES,
    "maximum_am_resource_percent": 40,
    "preemption": {"enabled": True, "total_preemption_per_round": 1, "natural_termination_factor": 1},
}


def preempted(yarn: Yarn) -> str:
    """It loses tasks to another queue, and finishes. Until then, the cluster has room for nothing else."""
    rich, starved = yarn.submit_and_run("rich", queue="a"), yarn.submit_and_run("starved", queue="b")
    rich.get_running(*[ask()] * 8)
    starved.get(*[ask()] * 4)
    yarn.advance(3_000)
    rich.allocate()
    yarn.advance(15_000)
    assert len(starved.get()) == 4
    rich.finish_and_exit()
    yarn.kill(starved.app_id)
    return rich.app_id


def finished(yarn: Yarn) -> str:
    yarn.register(NodeSpec("n2", Resource(20, 20_000, 2), http_port=8043))
    master = yarn.submit_and_run("=good", 2, queue="a", priority=3, tags=("x", "y"), application_type="SPARK")
    task, _ = master.get_running(ask(resource=Resource(3, 2_000, 1, 500)), ask(4))
    yarn.advance(4_321)
    master.allocate(progress=0.4)
    yarn.end(task)
    master.finish(diagnostics="all is well; really", tracking_url="http://history/1")
    yarn.advance(777)  # the other task runs until the master's container has ended
    assert master.container is not None
    yarn.end(master.container)
    return master.app_id


def finished_with_failures(yarn: Yarn) -> str:
    """The master says that what it did has failed, and its container exits with an error."""
    master = yarn.submit_and_run("sad", queue="a")
    yarn.advance(50)
    master.finish(final_status=FinalApplicationStatus.FAILED, diagnostics="no input")
    assert master.container is not None
    yarn.end(master.container, 3)
    return master.app_id


def failed(yarn: Yarn) -> str:
    """Its first master fails after it has registered, its second one before, on another node."""
    master = yarn.submit_and_run("bad", queue="a", max_attempts=2)
    master.get_running(ask(2))
    yarn.advance(500)
    assert master.container is not None
    yarn.end(master.container, 137, "out of memory")
    second = yarn.started[-1]
    yarn.launch(second)
    yarn.advance(300)
    yarn.end(second, 1)
    return master.app_id


def finished_by_the_second_master(yarn: Yarn) -> str:
    master = yarn.submit_and_run("again", queue="b", max_attempts=2)
    yarn.advance(100)
    assert master.container is not None
    yarn.end(master.container, 5)
    second = yarn.run(master.app_id)
    yarn.advance(60)
    second.finish_and_exit()
    return master.app_id


def finished_with_kept_containers(yarn: Yarn) -> str:
    master = yarn.submit_and_run("keeps", queue="b", max_attempts=2, keep_containers_across_attempts=True)
    master.get_running(ask(2))
    yarn.advance(100)
    assert master.container is not None
    yarn.end(master.container, 5)
    second = yarn.run(master.app_id)
    assert len(second.kept) == 1
    yarn.advance(60)
    second.finish_and_exit()
    return master.app_id


def killed(yarn: Yarn) -> str:
    master = yarn.submit_and_run("killed", queue="b")
    master.get_running(ask(2), ask(1))
    master.allocate(progress=0.25)
    yarn.advance(900)
    yarn.kill(master.app_id)
    return master.app_id


def killed_before_its_master_ran(yarn: Yarn) -> str:
    app_id = yarn.submit("early", queue="b")
    yarn.advance(40)
    yarn.kill(app_id)
    return app_id


def finished_unmanaged(yarn: Yarn) -> str:
    app_id = yarn.submit("free", queue="a", unmanaged_am=True)
    master = Master(yarn, app_id.replace("application", "appattempt") + "_000001", None)
    master.register()
    master.get_running(ask(1))
    yarn.advance(70)
    master.finish()
    return app_id


ENDS: Final[tuple[Callable[[Yarn], str], ...]] = (
    preempted,
    finished,
    finished_with_failures,
    failed,
    finished_by_the_second_master,
    finished_with_kept_containers,
    killed,
    killed_before_its_master_ran,
    finished_unmanaged,
)


class JsonStore(MemoryRMStateStore):
    """Gives back what a file would: JSON of the records."""

    def load_state(self) -> RMState:
        state = super().load_state()
        for app in state.applications.values():
            app.data = decode(encode(app.data), ApplicationStateData)
            app.attempts = {id: decode(encode(data), ApplicationAttemptStateData) for id, data in app.attempts.items()}
        return state


def said_of(served: Served, app_id: str) -> dict[str, Any]:
    """All that REST, the pages and the CSV say of an application."""

    def text(path: str) -> str:
        answer = served.ask(f"/{path}")
        assert answer.status_code == 200, answer.text
        return str(answer.text).replace(served.url, "http://rm")

    def rest(path: str) -> Any:
        return json.loads(text(BASE + path))

    served.publish()
    attempts = rest(f"/apps/{app_id}/appattempts")["appAttempts"]["appAttempt"]
    said: dict[str, Any] = {"attempts": attempts}
    for id in (each["appAttemptId"] for each in attempts):
        said |= {path: rest(f"/apps/{app_id}/appattempts/{path}") for path in (id, f"{id}/containers")}
    [listed] = [each for each in rest("/apps")["apps"]["app"] if each["id"] == app_id]
    for kind, app in ("app", rest(f"/apps/{app_id}")["app"]), ("listed", listed):
        said |= {f"{kind}.{name}": value for name, value in app.items() if name not in MAY_DIFFER}
    [row] = [row for row in csv.DictReader(io.StringIO(text("/cluster/apps?format=csv"))) if row["id"] == app_id]
    said |= {f"csv.{name}": value for name, value in row.items()}
    for name, path in ("row", "/cluster/apps"), ("ended", f"/cluster/apps/{listed['state']}"):
        said[name] = text(path).partition(f'<tr data-key="{app_id}">')[2].partition("</tr>")[0]
    failures = json.loads(text("/api/v1/failures"))
    said["failures"] = failures["groups"], [each for each in failures["last"] if each["application_id"] == app_id]
    page = text(f"/cluster/app/{app_id}")
    return said | {f"page.{part}": page.partition(f'id="part-{part}"')[2].partition(' id="part-')[0] for part in PARTS}


Said = dict[str, tuple[dict[str, Any], dict[str, Any]]]
"""By how an application ended: what is said of it before and after the restart."""


@pytest.fixture(scope="module")
def said() -> Said:
    """After the restart, no node comes back."""
    store = JsonStore()
    with Yarn("n1", store=store, scheduler=SCHEDULER) as yarn, Served(yarn.manager) as served:
        apps = {end.__name__: end(yarn) for end in ENDS}
        yarn.advance(1)
        before = {name: said_of(served, app_id) for name, app_id in apps.items()}
    with Yarn(store=store, scheduler=SCHEDULER) as yarn, Served(yarn.manager) as served:
        return {name: (before[name], said_of(served, app_id)) for name, app_id in apps.items()}


@pytest.mark.parametrize("name", [end.__name__ for end in ENDS])
def test_what_is_said_of_an_ended_application_is_the_same_after_a_restart(said: Said, name: str) -> None:
    before, after = said[name]

    assert all(len(before[part]) > 15 for part in ("row", "ended", *(f"page.{part}" for part in PARTS)))
    assert after == before


def test_what_an_ended_application_has_used_is_known_after_a_restart(said: Said) -> None:
    good, rich = said["finished"][1], said["preempted"][1]

    used = [entry["value"] for entry in good["app.resourceSecondsMap"]["entry"]]
    assert used == [(2 * 5_098 + 3 * 4_321 + 4 * 5_098) // 1_000, 8, 2]  # MB, vcores, GPUs
    assert (good["app.progress"], good["app.amRPCAddress"]) == (100.0, "host:1234")
    assert (rich["app.numNonAMContainerPreempted"], rich["app.preemptedMemorySeconds"]) == (4, 4 * 18)


def test_an_attempt_that_the_store_forgets_leaves_what_it_used_to_the_next() -> None:
    store = JsonStore()
    with Yarn("n1", store=store) as yarn:
        app_id = yarn.submit(max_attempts=2, attempt_failures_validity_interval_ms=1_000)
        for _ in range(3):
            container = yarn.started[-1]
            yarn.launch(container)
            yarn.advance(2_000)
            yarn.end(container, 1)
        yarn.kill(app_id)
        yarn.advance(1)
        before = yarn.report(app_id).usage
    with Yarn(store=store) as yarn:
        assert yarn.states(app_id) == ("KILLED", ["FAILED", "FAILED", "KILLED"])
        assert yarn.report(app_id).usage == before
        assert before.memory_mb_seconds == 6


def test_a_live_attempt_goes_on_counting_from_what_it_had_used_by_a_recent_heartbeat() -> None:
    store = JsonStore()
    with Yarn("n1", store=store) as yarn:
        master = yarn.submit_and_run(am_mb=2)
        [task] = master.get_running(ask(3))
        yarn.advance(5_000)
        yarn.end(task)
        yarn.advance(5_000)
        master.allocate(progress=0.5)
        yarn.advance(9_999)
        master.allocate(progress=0.6)  # not stored any more
    with Yarn(store=store) as yarn:
        report = yarn.report(master.app_id)
        assert (report.usage.memory_mb_seconds, report.progress) == (2 * 10 + 3 * 5, 0.5)

        running = NMContainerStatus(master.container.entity, master.container.request.resource)
        yarn.register("n1", containers=[running])
        yarn.advance(4_000)
        assert yarn.report(master.app_id).usage.memory_mb_seconds == 2 * 10 + 3 * 5 + 2 * 4
