"""Jupyter Enterprise Gateway runs kernels in YARN by yarn-api-client: the calls of its process proxy, and the answers.

It asks whether a partition of the queue has room, finds its application by the kernel's id in its name, waits until the
master has a host, and polls the state until a kill has worked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

client = pytest.importorskip("yarn_api_client", reason="yarn-api-client is not installed")

from statemachines.resourcemanager import ContainerRequest, Resource  # noqa: E402
from statemachines.simulation.workload import NodeSpec  # noqa: E402

from ..daemon.yarn_cluster import Yarn  # noqa: E402
from .served import Served  # noqa: E402

pytestmark = pytest.mark.long

KERNEL = "0a1b2c3d-1111-2222-3333-444455556666"
INITIAL = {"NEW", "SUBMITTED", "ACCEPTED", "RUNNING"}
FINAL = {"FINISHED", "KILLED", "FAILED"}
LABEL = {"accessible_node_labels": {"gpu": {"capacity": 100}}}
QUEUES = {
    "kind": "capacity",
    "queues": [
        {
            "name": "lab",
            "capacity": 50,
            "queues": [{"name": "kernels", "maximum_am_resource_percent": 100, **LABEL}],
            **LABEL,
        },
        {"name": "batch", "capacity": 50},
    ],
}  # fmt: skip


class ProcessProxy:
    """What Enterprise Gateway does for one kernel, with the calls that it makes."""

    def __init__(self, url: str) -> None:
        self.rm = client.ResourceManager(service_endpoints=[url], auth=None)

    def has_room(self, queue: str, label: str, threshold: float = 95.0) -> bool | None:
        """None: there is nothing to check."""
        candidate = self.rm.cluster_scheduler_queue(queue)
        partition = candidate and self.rm.cluster_queue_partition(candidate, label)
        return partition and bool(self.rm.cluster_scheduler_queue_availability(partition, threshold))

    def find(self, kernel: str, since_ms: int = 0) -> dict[str, Any] | None:
        """The newest application with the kernel's id in its name."""
        data = self.rm.cluster_applications(started_time_begin=str(since_ms)).data
        apps = data["apps"]["app"] if isinstance(data["apps"], dict) else []
        return max((app for app in apps if kernel in app["name"]), key=lambda app: str(app["id"]), default=None)

    def state_and_host(self, app_id: str) -> tuple[str, str]:
        """Empty: the master has no host yet."""
        app = self.rm.cluster_application(application_id=app_id).data["app"]
        return app["state"], str(app.get("amHostHttpAddress", "")).split(":")[0]

    def state(self, app_id: str) -> str:
        return str(self.rm.cluster_application_state(application_id=app_id).data["state"])

    def kill(self, app_id: str, wait: Callable[[], None]) -> str:
        self.rm.cluster_application_kill(application_id=app_id)
        for _ in range(10):
            if self.state(app_id) in FINAL:
                break
            wait()
        return self.state(app_id)


@pytest.fixture
def yarn() -> Iterator[Yarn]:
    nodes = NodeSpec("n1", Resource(1000, 4000)), NodeSpec("n2", Resource(1000, 4000), partition="gpu")
    with Yarn(*nodes, scheduler=QUEUES) as yarn:
        yield yarn


@pytest.fixture
def served(yarn: Yarn) -> Iterator[Served]:
    with Served(yarn.manager) as served:
        served.publish()
        yield served


@pytest.fixture
def proxy(served: Served) -> Iterator[ProcessProxy]:
    proxy = ProcessProxy(served.url)
    yield proxy
    proxy.rm.session.close()


def test_a_kernel_from_its_launch_to_its_end(yarn: Yarn, served: Served, proxy: ProcessProxy) -> None:
    before = proxy.find(KERNEL)
    app_id = yarn.submit(f"kernel-{KERNEL}", am_mb=100, queue="kernels", user="ann")
    served.publish()
    accepted = proxy.find(KERNEL)
    yarn.run(app_id)
    served.publish()
    running, host = proxy.state_and_host(app_id)
    killed = proxy.kill(app_id, served.publish)

    assert before is None
    assert accepted is not None
    assert (accepted["id"], accepted["state"] in INITIAL) == (app_id, True)
    assert (running, host, killed) == ("RUNNING", "n1", "KILLED")
    assert proxy.rm.cluster_application(app_id).data["app"]["finalStatus"] == "KILLED"


def test_of_a_restarted_kernel_the_newest_application_is_found(yarn: Yarn, served: Served, proxy: ProcessProxy) -> None:
    first = yarn.submit(KERNEL, am_mb=100, queue="kernels")
    yarn.kill(first)
    yarn.advance(1_000)
    second = yarn.submit(KERNEL, am_mb=100, queue="kernels")
    served.publish()

    newest, since_then = proxy.find(KERNEL), proxy.find(KERNEL, since_ms=1_000)
    later = proxy.find(KERNEL, since_ms=1_001)

    assert newest is not None
    assert (newest["id"], since_then, later) == (second, newest, None)
    assert (proxy.state(first), proxy.state(second)) == ("KILLED", "ACCEPTED")


def test_a_partition_of_a_queue_has_room_until_it_is_full(yarn: Yarn, served: Served, proxy: ProcessProxy) -> None:
    empty = proxy.has_room("kernels", "gpu")
    master = yarn.submit_and_run("app", am_mb=10, queue="kernels")
    master.get_running(ContainerRequest(Resource(960, 1000), node_label="gpu", tag=1))
    served.publish()

    assert (empty, proxy.has_room("kernels", "gpu"), proxy.has_room("kernels", "gpu", 97.0)) == (True, False, True)
    assert proxy.has_room("kernels", "") is True
    assert (proxy.has_room("kernels", "none"), proxy.has_room("nowhere", "gpu")) == (None, None)
