"""Which entities a user sees: the hook `may_see`, at every answer and page that has ids, payloads or messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, Retry
from dispatcher.ops import OpsConfig, ops_app

from ...kit import OfEntity, Work, until
from ..cli.letters import Order, OrderEvent
from .client import WAIT_S, Client, Job, JobEvent, hanging
from .stage import keep
from .test_ops_entities import Things

SHOWS_IDS = (
    "/v1/overview",
    "/v1/dispatchers",
    "/v1/dispatchers/central",
    "/v1/dispatchers/central/types",
    "/v1/dispatchers/central/queue?by=entity&limit=1",
    "/v1/dispatchers/central/running",
    "/v1/dispatchers/central/failures",
    "/v1/dispatchers/central/failures/groups",
    "/v1/dispatchers/central/scheduled",
    "/v1/dispatchers/central/retrying",
    "/v1/dispatchers/central/dead-letters",
    "/v1/machines/Job/entities?limit=1",
    "/v1/journal/tail?dispatcher=central",
    "/v1/journal/tail?dispatcher=central&after_seq=0",
    "/v1/journal/outstanding?dispatcher=ahead",
    "/v1/stream",
    "/",
    "/dispatcher/central",
    "/failures",
    "/failures/letters?dispatcher=central",
    "/scheduled",
    "/entities",
    "/journal?dispatcher=central",
)
"""Those that show an administrator something of an administrator's."""
OTHERS = ("/v1/machines", "/v1/journal/state?dispatcher=central", "/v1/process", "/process")
REFUSED = {
    "/v1/entities/admin_1": "you may not see the entity 'admin_1'",
    "/v1/entities/admin_none": "you may not see the entity 'admin_none'",
    "/v1/journal/tail?entity=admin_1": "you may not see the entity 'admin_1'",
    "/v1/configuration": "the configuration is shown to those who may see everything",
}


async def own(request: Any) -> Callable[[str | None], bool]:
    """Everyone sees what is named after its role; administrators see everything."""
    role = request.scope["principal"].role
    return lambda entity: role == "admin" or (entity is not None and entity.startswith(role))


def client(role: str) -> Client:
    return Client(ops_app(OpsConfig(show_payloads=True), may_see=own), role, "")


def text(role: str, path: str) -> str:
    if path == "/v1/stream":
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


def fail(event: object) -> None:
    raise ConnectionError("_".join(("admin", "is down")))  # the line itself is shown to everyone


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Things]:
    """A handler hangs on an entity of an administrator. Others, and one of a user, have failed, wait and are kept."""
    for patience in ("failures._SOON_S", "lookups._PATIENCE_S"):  # otherwise pages have what is read when asked again
        monkeypatch.setattr(f"dispatcher.pages.{patience}", WAIT_S)
    keep(*((entity, "Job", "NEW", "GO", "UP") for entity in ("admin_1", "user_1")))
    journal, ahead = JournalWriter(tmp_path / "journal"), JournalWriter(tmp_path / "a", JournalConfig(write_ahead=True))
    later = AsyncDispatcher(name="ahead", journal=ahead)
    later.register(Order, lambda event: None, events=OrderEvent)
    with later, hanging(journal=journal, dead_letters=tmp_path / "letters") as found:
        for entity in ("admin_1", "user_1"):
            later.post_after(3600, OrderEvent(Order.PLACED, entity), key=f"admin_key of {entity}")
        found.dispatcher.register(Work, fail, on_error=Retry(delay_s=3600, max_delay_s=3600))
        found.dispatcher.post_after(3600, JobEvent(Job.WAIT, "admin_1"), key="admin_key")
        for entity in ("user_1", "admin_1"):
            found.post(Job.FAIL, entity)
            assert found.dispatcher.post(OfEntity(entity))
        until(lambda: found.dispatcher.stats().retrying == 2)
        found.hang("admin_1")
        for entity in ("admin_1", "admin_1", "user_1"):
            found.post(Job.WAIT, entity)
        until(lambda: "admin_1" in text("admin", "/v1/journal/tail?dispatcher=central"))
        yield Things("Job", admin_1=("UP", 1), user_1=("UP", 1))


def test_what_a_user_may_not_see_is_nowhere(things: Things) -> None:
    assert [path for path in (*SHOWS_IDS, *OTHERS) if "admin_" in text("user", path)] == []
    assert [path for path in (*SHOWS_IDS, *OTHERS) if "admin_" in text("admin", path)] == list(SHOWS_IDS)


def test_a_user_sees_its_own(things: Things) -> None:
    asked = client("user")
    central = "/v1/dispatchers/central"

    def entities(path: str, **query: Any) -> list[str | None]:
        return [each.get("entity", each.get("id")) for each in asked.json(path, **query)["items"]]

    assert entities("/v1/machines/Job/entities", limit=1) == ["user_1"]
    assert entities(f"{central}/queue", by="entity") == ["user_1"]
    assert entities(f"{central}/failures") == [None, "user_1"]
    assert entities(f"{central}/retrying") == entities(f"{central}/dead-letters") == ["user_1"]
    assert entities(f"{central}/scheduled") == [], "an event can be about anything"
    assert set(entities("/v1/journal/tail", dispatcher="central")) == {"user_1"}
    assert entities("/v1/journal/outstanding", dispatcher="ahead") == ["user_1"]
    assert asked.json("/v1/entities/user_1")["state"] == "UP"
    assert asked.json(f"{central}/dead-letters/1") | {"at": 0} == {
        "number": 1,
        "event_class": "Job",
        "event_type": "FAIL",
        "entity": "user_1",
        "attempts": 1,
        "at": 0,
        "is_declared": True,
        "error": "ValueError",
        "traceback": "",
        "event": None,
        "journal": asked.json(f"{central}/dead-letters")["journal"],
    }
    assert asked.json(f"{central}/dead-letters", search="such")["items"] == [], "no word of a message is found"
    assert [each["failed"] for each in asked.json(f"{central}/failures/groups")["items"]] == [0, 2]
    for path, said in (
        ("/scheduled", "1 scheduled post. You may not see them."),
        ("/process", "It is shown to those who may see everything."),
    ):
        assert said in " ".join(asked.get(path).text.split())


@pytest.mark.parametrize("path", REFUSED)
def test_the_id_of_what_a_user_may_not_see_is_403_whether_it_exists_or_not(things: Things, path: str) -> None:
    answer = client("user").request("GET", path)

    assert (answer.status_code, answer.json()) == (403, {"error": REFUSED[path]})


@pytest.mark.parametrize(
    "path",
    ["/v1/dispatchers/central/dead-letters/2", "/entity/admin_1", "/failures/letter?dispatcher=central&number=2"],
)
def test_a_page_about_what_a_user_may_not_see_is_an_error(things: Things, path: str) -> None:
    assert client("user").request("GET", path).status_code in (403, 404)


def test_a_hook_that_fails_shows_nothing() -> None:
    async def broken(request: object) -> Callable[[str | None], bool]:
        raise LookupError("no such user")

    app = ops_app(OpsConfig(control=True), may_see=broken)
    status, _ = Client(app).error("/dispatchers")
    page = Client(app, "admin", "").get("/failures")

    assert (status, page.status_code) == (500, 500)
    assert "LookupError: no such user" in page.text
