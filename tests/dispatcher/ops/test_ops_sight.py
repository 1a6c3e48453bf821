"""Which entities a user sees: the hook `may_see`, at every answer that has ids, payloads or messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request

from dispatcher import JournalWriter
from dispatcher.metrics.transition_ring import ring
from dispatcher.ops import OpsConfig, ops_app

from ...kit import until
from .client import Client, Job, JobEvent, hanging
from .test_ops_entities import Things, keep

PATHS = (
    "/dispatchers",
    "/dispatchers/central",
    "/dispatchers/central/types",
    "/dispatchers/central/queue?by=entity&limit=1",
    "/dispatchers/central/running",
    "/dispatchers/central/failures",
    "/machines",
    "/machines/Job/entities?limit=1",
    "/journal/tail",
    "/journal/tail?after_seq=0",
    "/journal/state",
    "/process",
    "/stream",
)
WITH_IDS = PATHS[:6] + PATHS[7:10] + PATHS[12:]
"""Those that show an administrator something of an administrator's."""


async def own(request: Request) -> Callable[[str | None], bool]:
    """Everyone sees what is named after its role; administrators see everything."""
    role = request.scope["principal"].role
    return lambda entity: role == "admin" or (entity is not None and entity.startswith(role))


def client(role: str) -> Client:
    return Client(ops_app(OpsConfig(show_payloads=True), may_see=own), role)


def text(role: str, path: str) -> str:
    if path == "/stream":
        return asyncio.run(_first_of_stream(role)).text
    found = client(role).request("GET", path)
    assert found.status_code == 200, found.text
    return found.text


async def _first_of_stream(role: str) -> httpx.Response:
    stopping = asyncio.Event()
    app = ops_app(stopping=stopping, may_see=own)
    answer = asyncio.ensure_future(Client(app, role).send("GET", "/stream"))
    while not any(app.state.ops.numbers.get(key) for key in ("dispatchers", "dispatchers in part")):
        await asyncio.sleep(0)
    for _ in range(50):  # the event is on its way
        await asyncio.sleep(0)
    stopping.set()
    return await answer


@pytest.fixture
def things(tmp_path: Path) -> Iterator[Things]:
    """A handler hangs on an entity of an administrator. Others, and one of a user, have failed, wait and are kept."""
    ring.resize(100)
    keep(*((entity, "Job", "NEW", "GO", "UP") for entity in ("admin_1", "user_1")))
    with hanging(journal=JournalWriter(tmp_path / "journal")) as found:
        found.dispatcher.post_after(3600, JobEvent(Job.WAIT, "admin_1"), key="admin_key")
        for entity in ("user_1", "admin_1"):
            found.post(Job.FAIL, entity)
        found.hang("admin_1")
        for entity in ("admin_1", "admin_1", "user_1"):
            found.post(Job.WAIT, entity)
        until(lambda: "admin_1" in text("admin", "/journal/tail"))
        yield Things("Job", admin_1=("UP", 1), user_1=("UP", 1))


def test_what_a_user_may_not_see_is_nowhere(things: Things) -> None:
    assert [path for path in PATHS if "admin" in text("user", path)] == []
    assert [path for path in PATHS if "admin_" in text("admin", path)] == list(WITH_IDS)


def test_a_user_sees_its_own(things: Things) -> None:
    asked = client("user")

    assert [each["id"] for each in asked.json("/machines/Job/entities", limit=1)["items"]] == ["user_1"]
    assert asked.json("/dispatchers/central/queue", by="entity")["items"] == [{"entity": "user_1", "queued": 1}]
    assert [each["entity"] for each in asked.json("/dispatchers/central/failures")["items"]] == [None, "user_1"]
    assert [each["entity"] for each in asked.json("/journal/tail")["items"]] == ["user_1"]
    assert asked.json("/entities/user_1")["state"] == "UP"


def test_the_id_of_what_a_user_may_not_see_is_403_whether_it_exists_or_not(things: Things) -> None:
    asked = client("user")

    assert asked.error("/entities/admin_1") == (403, "you may not see the entity 'admin_1'")
    assert asked.error("/entities/admin_none") == (403, "you may not see the entity 'admin_none'")
    assert asked.error("/journal/tail", entity="admin_1") == (403, "you may not see the entity 'admin_1'")


def test_a_hook_that_fails_shows_nothing() -> None:
    async def broken(request: Request) -> Callable[[str | None], bool]:
        raise LookupError("no such user")

    status, _ = Client(ops_app(may_see=broken)).error("/dispatchers")

    assert status == 500
