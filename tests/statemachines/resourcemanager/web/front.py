"""A resource manager behind its door on a free port, and clients of its REST API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from dispatcher import CompositeService, JournalWriter
from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.web import RMDoor
from statemachines.simulation.workload import NodeSpec, Workload

from ....kit import until
from ....kit.commands import run_here
from ....kit.holding import held
from ...simulation.replays import TIMEOUT_S
from ..inner import RMStateStore, SimulatedCluster

BASE = "/ws/v1/cluster"
NODE = NodeSpec("n1", Resource(4096, 4000))
NODE_ID = "n1:45454"
WRITE_TIMEOUT_S = 80.0
PATIENT = {"write_timeout_s": WRITE_TIMEOUT_S, "request_deadline_s": 90.0}
"""Deadlines that a busy machine keeps."""


class Front:
    """A daemon, and requests to it. Its applications wait for ever if it has no nodes."""

    def __init__(self, daemon: CompositeService, manager: ResourceManager, door: RMDoor) -> None:
        self.daemon = daemon
        self.manager = manager
        self.door = door
        self.http = httpx.Client(base_url=str(door.url), timeout=TIMEOUT_S)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.http.get(BASE + path, **more)

    def post(self, path: str, content: Any = None, **more: Any) -> httpx.Response:
        return self._send("POST", path, content, **more)

    def put(self, path: str, content: Any, **more: Any) -> httpx.Response:
        return self._send("PUT", path, content, **more)

    def _send(self, method: str, path: str, content: Any, headers: dict[str, str] | None = None, **more: Any) -> Any:
        """Content None: no body."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        body = b"" if content is None else json.dumps(content).encode()
        return self.http.request(method, BASE + path, content=body, headers=headers, **more)

    def new_id(self, **more: Any) -> str:
        answer = self.post("/apps/new-application", **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["application-id"])

    def submit(self, user: str | None = None, *, headers: dict[str, str] | None = None, **body: Any) -> str:
        """Submit an application; returns its id."""
        more: dict[str, Any] = {"params": {} if user is None else {"user.name": user}, "headers": headers or {}}
        app_id = self.new_id(**more)
        self.http.cookies.clear()
        answer = self.post("/apps", {**submission(app_id), **body}, **more)
        self.http.cookies.clear()
        assert answer.status_code == 202, answer.text
        return app_id

    def apps(self) -> set[str]:
        """The ids of all applications, on the handler thread."""
        return {each.application_id for each in self.manager.clients.get_applications(timeout=TIMEOUT_S)}

    def state(self, app_id: str) -> str:
        return self.manager.clients.get_application_report(app_id, timeout=TIMEOUT_S).state

    @contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """Changes have only 0.2 s meanwhile: before and after, on a busy machine, they may need more."""
        rm = self.door.app.state.rm
        config = rm.config
        rm.config = config.model_copy(update={"write_timeout_s": 0.2})
        try:
            yield
        finally:
            rm.config = config

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """The handler thread does nothing meanwhile."""
        with held(self.manager.dispatcher.mailbox_executor.execute, "hang"):
            yield


def submission(app_id: str, **more: Any) -> dict[str, Any]:
    return {"application-id": app_id, "resource": {"memory": 1, "vCores": 1}, **more}


@contextmanager
def front(
    *nodes: NodeSpec,
    store: Callable[[], RMStateStore] | None = None,
    journal: Path | None = None,
    web: dict[str, Any] | None = None,
    token: str | None = None,
    **settings: Any,
) -> Iterator[Front]:
    """Nodes of a simulated cluster: masters end at once. `token`: without one, a door with tokens answers nothing."""
    all_settings = {
        "metrics": {"enabled": False},
        "nm_heartbeat_interval_ms": 10,
        "simulation": {"am_register_delay_ms": 1},
        **settings,
        # Tests may be slow, and some submit what no node has room for.
        "scheduler": {"maximum_allocation_wait_ms": 3_600_000, **settings.get("scheduler", {})},
        "web": {"port": 0, "unix_socket": False, "refresh_ms": 20, **PATIENT, **(web or {})},
    }
    config = ResourceManagerConfig.model_validate(all_settings)
    writer = JournalWriter(journal) if journal is not None else None
    manager = ResourceManager(
        config, node_managers=SimulatedCluster, store=store() if store is not None else None, journal=writer
    )
    if nodes:
        manager.bring(Workload("nodes", nodes, ()))
    daemon, door = CompositeService("daemon"), RMDoor(manager)
    daemon.add_service(door)
    daemon.add_service(manager)
    with daemon:
        made = Front(daemon, manager, door)
        with made.http:
            headers = {} if token is None else bearer(token)
            until(lambda: made.http.get("/cluster", headers=headers).status_code == 200, "it is active")
            if nodes:
                until(lambda: _running(door) == len(nodes), "its nodes are in what the pages and REST read")
            yield made


def _running(door: RMDoor) -> int:
    return sum(node.state == "RUNNING" for node in door.app.state.rm.model.nodes.values())


def tokens_of(path: Path, roles: Mapping[str, Any]) -> dict[str, str]:
    """The tokens of users with these roles, by user; the file gets their lines."""
    made = {name: run_here("token", "new", name, "--role", role, "--file", path) for name, role in roles.items()}
    assert [each.err for each in made.values()] == [""] * len(made)
    return {name: each.out.strip() for name, each in made.items()}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def message(answer: httpx.Response) -> str:
    """Of an error in Hadoop's form."""
    return str(answer.json()["RemoteException"]["message"])
